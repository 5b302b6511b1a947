// Bigmoe runs mixture-of-experts language models that are larger than memory. See docs/cli.md.
//
// This is the only package of the module that reads the environment or writes to a terminal. It wires engine, recipes
// and backends together, as package bigmoe does for other programs. One file per verb; app.go is what they share.
package main

import "os"

func main() {
	ctx, stop := interrupts()
	code := (&app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, lookupEnv: os.LookupEnv}).execute(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
