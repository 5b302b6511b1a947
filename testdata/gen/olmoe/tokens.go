package main

import (
	"fmt"
	"strings"
)

// merges build a few words of the prompt out of letters; Ġ is the space of byte-level vocabularies.
var merges = strings.Split("h e|Ġ t|Ġt he|T he|e d|Ġ b|o y|Ġb oy|Ġ s|o n|e s|Ġs t|Ġst on|Ġston es|Ġ a|n d|Ġa nd|i n|Ġ i|Ġi t|e r|Ġ o|l d|Ġo ld", "|")

const (
	normal, control = 1, 3
	endOfText       = 0
)

// vocabulary returns the tokens and their types: two control tokens, the 256 bytes, and a token for each merge.
func vocabulary() (texts []string, types []int32) {
	add := func(text string, typ int32) { texts, types = append(texts, text), append(types, typ) }
	add("<|endoftext|>", control)
	add("<|padding|>", control)
	spare := rune(256) // bytes that do not print are spelled as the letters from here on
	for b := range rune(256) {
		if b > ' ' && b < 0x7F || b > 0xA0 && b != 0xAD {
			add(string(b), normal)
		} else {
			add(string(spare), normal)
			spare++
		}
	}
	for _, m := range merges {
		add(strings.ReplaceAll(m, " ", ""), normal)
	}
	for len(texts) < vocabularySize {
		add(fmt.Sprintf("<|extra_%d|>", len(texts)), control)
	}
	return texts, types
}

// encode spells text with the vocabulary: in each word the earliest merge first. Words begin at spaces and at full stops,
// which is what the rule called "olmo" makes of the prompt.
func encode(text string) (ids []int) {
	texts, _ := vocabulary()
	index := map[string]int{}
	for i, t := range texts {
		index[t] = i
	}
	for _, word := range strings.Split(strings.NewReplacer(" ", "\x00Ġ", ".", "\x00.").Replace(text), "\x00") {
		parts := strings.Split(word, "")
		for _, m := range merges {
			left, right, _ := strings.Cut(m, " ")
			for i := 0; i+1 < len(parts); i++ {
				if parts[i] == left && parts[i+1] == right {
					parts = append(append(parts[:i:i], left+right), parts[i+2:]...)
				}
			}
		}
		for _, p := range parts {
			ids = append(ids, index[p])
		}
	}
	return ids
}
