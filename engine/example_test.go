package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"

	"github.com/bigmoe/bigmoe"
	"github.com/bigmoe/bigmoe/engine"
	"github.com/bigmoe/bigmoe/engine/sample"
	"github.com/bigmoe/bigmoe/engine/token"
	"github.com/bigmoe/bigmoe/sdk/fault"
)

// demo is the model inside the bigmoe program, with a cache for a third of its experts.
var demo = engine.Config{
	Model:       "../cmd/bigmoe/internal/demo/bigmoe-demo.gguf",
	MemoryBytes: 192 << 20,
	CacheBytes:  2560 << 10,
}

// Open a model and write a text, the same one each time.
func Example() {
	ctx := context.Background()
	e, err := bigmoe.Open(ctx, demo)
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	const prompt = "Once upon a time there was a"
	res, err := e.NewSession().Generate(ctx, engine.Request{Prompt: prompt, MaxTokens: 12, Sampling: sample.Greedy()}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(prompt + res.Text)
	fmt.Println("stopped by:", res.Stop)
	fmt.Println("experts from the cache:", res.Decode.Hits > 0, "from the file:", res.Decode.MissBytes > 0)
	// Output:
	// Once upon a time there was a clever snail named Leo. Leo lived in the village. One
	// stopped by: length
	// experts from the cache: true from the file: true
}

// Each piece of text as it becomes certain.
func ExampleSession_Generate() {
	ctx := context.Background()
	e, err := bigmoe.Open(ctx, demo)
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	req := engine.Request{Prompt: "Once upon a time", MaxTokens: 6, Sampling: sample.Greedy()}
	_, err = e.NewSession().Generate(ctx, req, func(t engine.Token) error {
		_, err := fmt.Printf("%q ", t.Text)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// " there" " was" " a" " clever" " snail" " named"
}

// How probable a text is: the sum of the logarithms of each token's probability after those before it.
func ExampleSession_Score() {
	ctx := context.Background()
	cfg := demo
	cfg.LogitRows = 64 // positions at once
	e, err := bigmoe.Open(ctx, cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	score := func(text string) (sum float64) {
		ids := e.Tokenizer.Encode(text, token.Options{AddSpecial: true})
		err := e.NewSession().Score(ctx, ids, 0, func(position int, logits []float32) error {
			if position+1 < len(ids) {
				sum += logProbability(logits, ids[position+1])
			}
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
		return sum
	}
	fmt.Println(score("Once upon a time there was a") > score("Once upon a there time was a"))
	// Output:
	// true
}

// logProbability is the logarithm of the softmax of one logit.
func logProbability(logits []float32, id int32) float64 {
	var sum float64
	for _, l := range logits {
		sum += math.Exp(float64(l - logits[id]))
	}
	return -math.Log(sum)
}

// What is in a file, without loading it.
func ExampleInspect() {
	o, err := bigmoe.Inspect(context.Background(), demo)
	if err != nil {
		log.Fatal(err)
	}
	defer o.Close()
	fmt.Println(o.Plan.Architecture, o.Plan.Model.Layers, "layers,", o.Tokenizer.Vocab(), "tokens")
	fmt.Println(len(o.Model.Banks), "layers of", o.Model.Banks[0].Experts, "experts,", o.Model.MaxTopK(), "used")
	fmt.Println(o.Model.DenseBytes(), "bytes stay in memory,", o.Model.ExpertBytes(), "are streamed")
	// Output:
	// qwen3moe 4 layers, 1024 tokens
	// 4 layers of 32 experts, 4 used
	// 1256448 bytes stay in memory, 7077888 are streamed
}

// A context ends a call at once. The next one works.
func ExampleSession_Generate_cancel() {
	e, err := bigmoe.Open(context.Background(), demo)
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	s := e.NewSession()
	req := engine.Request{Prompt: "Once upon a time", Sampling: sample.Greedy()}

	ctx, cancel := context.WithCancel(context.Background())
	res, err := s.Generate(ctx, req, func(t engine.Token) error {
		cancel() // from here or from any other goroutine
		return nil
	})
	fmt.Println(len(res.Tokens), errors.Is(err, context.Canceled))

	req.MaxTokens = 3
	res, err = s.Generate(context.Background(), req, nil)
	fmt.Printf("%q %v\n", res.Text, err)
	// Output:
	// 1 true
	// " there was a" <nil>
}

// Whose move it is when something fails.
func ExampleOpen_errors() {
	cfg := demo
	cfg.MemoryBytes = 1 << 20
	_, err := bigmoe.Open(context.Background(), cfg)
	switch fault.KindOf(err) {
	case fault.Corrupt:
		fmt.Println("the file is damaged")
	case fault.User:
		fmt.Println("ask for something else")
	case fault.Unsupported:
		fmt.Println("another model, recipe, backend or version is needed")
	case fault.Bug:
		fmt.Println("report it")
	default:
		fmt.Println("the machine failed")
	}
	// Output:
	// ask for something else
}
