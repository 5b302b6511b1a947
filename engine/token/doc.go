// Package token turns text into token ids and back (specs/tokenizers.md, specs/gemma4.md section 6).
//
//	t, err := token.New(file) // a *gguf.File
//	if err != nil {
//		return err
//	}
//	ids := t.Encode(prompt, token.Options{AddSpecial: true, ParseSpecial: true})
//	out := t.Stream(false)
//	for {
//		id := next(ids)
//		if t.EOG(id) {
//			fmt.Print(out.Flush())
//			break
//		}
//		fmt.Print(out.Push(id))
//	}
//
// Supported are three values of tokenizer.ggml.model: gpt2, byte-level BPE, with the pre-tokenizers of GPT-2, Qwen 2
// to 3.5, Llama 3, gpt-4o, DeepSeek and their relatives; gemma4, BPE on characters; llama, which is SentencePiece
// ordered by scores. Other models are refused by name, and so is an unknown pre-tokenizer: a guess would give
// plausible ids that the model was not trained on.
//
// Caveats. Input is taken as it is, without Unicode normalisation; each byte that is not part of well-formed UTF-8
// becomes U+FFFD, except in llama vocabularies, whose tokens for single bytes spell it. With ParseSpecial, text that
// spells a control token becomes that token: never use it for text whose author must not be able to forge a turn. Time
// is linear in the text but for a logarithm, whatever the text.
//
// A [Tokenizer] is immutable and safe for concurrent use; a [Stream] belongs to one goroutine. A vocabulary of
// 152,000 tokens and as many merges takes about 6 MiB, that of Gemma 4 (262,144 and 514,906) about 15 MiB.
package token
