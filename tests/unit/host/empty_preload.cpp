// A library to preload that does nothing but be there.
extern "C" int gdx_test_preloaded() { return 1; }
