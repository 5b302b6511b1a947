package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bigmoe/bigmoe/engine/gguf"
	"github.com/bigmoe/bigmoe/engine/token"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

type tokenizeFlags struct {
	model      string
	special    bool
	addSpecial bool
	json       bool
}

func (f *tokenizeFlags) add(fs *pflag.FlagSet) {
	fs.StringVarP(&f.model, "model", "m", "", "GGUF `FILE`; without it the built-in demo model")
}

func (a *app) tokenizeCommand() *cobra.Command {
	f := &tokenizeFlags{}
	cmd := &cobra.Command{
		Use:     "tokenize [flags] < TEXT",
		Short:   "Turn text from standard input into token ids",
		Example: `  printf 'Once upon a time' | bigmoe tokenize -m model.gguf --json`,
		Long:    `The text is taken as it is, a newline at its end included. Only the tokenizer of the file is needed, no recipe.`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.tokenize(cmd.Context(), f) },
	}
	fs := cmd.Flags()
	f.add(fs)
	fs.BoolVar(&f.special, "special", false, "text that spells a special token becomes that token")
	fs.BoolVar(&f.addSpecial, "add-special", false, "begin and end with the tokens that the model wants there")
	fs.BoolVar(&f.json, "json", false, "a JSON list instead of one id per line")
	return cmd
}

func (a *app) detokenizeCommand() *cobra.Command {
	f := &tokenizeFlags{}
	cmd := &cobra.Command{
		Use:     "detokenize [flags] < IDS",
		Short:   "Turn token ids from standard input into text",
		Example: `  echo '[1,2,3]' | bigmoe detokenize -m model.gguf`,
		Long: `The ids are a JSON list, or numbers separated by white space. What comes out are the bytes that the tokens stand for and
nothing else, so it need not end in a newline or be whole characters; with --json it is a JSON string, in which bytes that
are no text are U+FFFD.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.detokenize(cmd.Context(), f) },
	}
	fs := cmd.Flags()
	f.add(fs)
	fs.BoolVar(&f.special, "special", false, "show control tokens too")
	fs.BoolVar(&f.json, "json", false, "a JSON string")
	return cmd
}

// openTokenizer loads the tokenizer of a model file.
func openTokenizer(given string) (*token.Tokenizer, error) {
	path, _, remove, err := modelPath(given)
	if err != nil {
		return nil, err
	}
	defer remove()
	file, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	t, err := token.New(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

func (a *app) tokenize(ctx context.Context, f *tokenizeFlags) error {
	t, err := openTokenizer(f.model)
	if err != nil {
		return err
	}
	text, err := a.readStdin(ctx, "text")
	if err != nil {
		return err
	}
	ids := t.Encode(text, token.Options{AddSpecial: f.addSpecial, ParseSpecial: f.special})
	if f.json {
		return json.NewEncoder(a.stdout).Encode(ids)
	}
	var b strings.Builder
	for _, id := range ids {
		fmt.Fprintln(&b, id)
	}
	_, err = fmt.Fprint(a.stdout, b.String())
	return err
}

func (a *app) detokenize(ctx context.Context, f *tokenizeFlags) error {
	t, err := openTokenizer(f.model)
	if err != nil {
		return err
	}
	input, err := a.readStdin(ctx, "token ids")
	if err != nil {
		return err
	}
	ids, err := parseIDs(input)
	if err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	text, err := t.Decode(ids, f.special)
	if err != nil {
		return err
	}
	if f.json {
		return json.NewEncoder(a.stdout).Encode(string(text))
	}
	_, err = a.stdout.Write(text)
	return err
}

// parseIDs reads token ids: a JSON list, or numbers separated by white space.
func parseIDs(text string) ([]int32, error) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "[") {
		var list []*int32 // a null would be a 0 in a list of int32
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return nil, fault.Userf("not a JSON list of token ids: %w", err)
		}
		ids := make([]int32, len(list))
		for i, id := range list {
			if id == nil || *id < 0 {
				return nil, fault.Userf("number %d is not a token id: expected 0 or more", i+1)
			}
			ids[i] = *id
		}
		return ids, nil
	}
	var ids []int32
	for word := range strings.FieldsSeq(text) {
		id, err := strconv.ParseUint(word, 10, 64)
		if err != nil || id > math.MaxInt32 {
			return nil, fault.Userf("%q (number %d) is not a token id", word, len(ids)+1)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}
