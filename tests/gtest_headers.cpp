// A program of no tests: with it GoogleTest's headers are compiled, for all others to use.
