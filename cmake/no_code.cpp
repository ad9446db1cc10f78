// Holds no code: precompiled headers need a source to be compiled for.
