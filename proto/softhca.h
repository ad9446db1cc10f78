// Symbols that the software HCA exports. Callers look them up at run time (dlsym), so that one binary serves
// machines with and without it. On real hardware they are absent and the calls are skipped.
#pragma once

namespace gdx {

// Signature: int gdx_softhca_progress(void). Runs one step of the HCAs of this process on the calling thread:
// doorbells, arrivals, timers. Returns the number of things done: 0 when idle or when another thread runs a
// step. Thread-safe, does not block.
inline constexpr char kSofthcaProgressSymbol[] = "gdx_softhca_progress";
using SofthcaProgress = int (*)();

// Signature: void gdx_softhca_wake(void). Wakes the threads that drive the HCAs of this process, and lets
// them look for doorbells for a while. Thread-safe, does not block.
inline constexpr char kSofthcaWakeSymbol[] = "gdx_softhca_wake";
using SofthcaWake = void (*)();

// Signature: void gdx_softhca_share(int file). Tells that strangers get the file of this open of the device.
// They could lock it, and so make its end unseen: it ends with the close of this descriptor, by close(2).
// Thread-safe.
inline constexpr char kSofthcaShareSymbol[] = "gdx_softhca_share";
using SofthcaShare = void (*)(int file);

// Signature: int gdx_softhca_raise(int event). Tells all contexts of this process an asynchronous event of
// the device or port 1, and changes nothing else. `event` is a number of enum ibv_event_type. For tests.
// Returns the number of contexts. Thread-safe.
inline constexpr char kSofthcaRaiseSymbol[] = "gdx_softhca_raise";
using SofthcaRaise = int (*)(int event);

}  // namespace gdx
