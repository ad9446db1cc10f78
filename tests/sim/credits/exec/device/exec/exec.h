// The execution layer of the credits' world, before device/exec/exec.h on the path of includes: the CPU
// layer, in steps. Each access to memory that others change is a step, before which every other thread may
// run. Device code's `exec` is the inner namespace here. What it does not define comes from the CPU layer.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/exec/cpu.h"
#include "tests/sim/credits/steps.h"

namespace gdx::device::exec {

using namespace gdx::exec;

template <typename Word>
Word load_counter(const Word* from) {
  sim::step();
  return gdx::exec::load_counter(from);
}
inline std::uint32_t load_flag(const std::uint32_t* from) {
  sim::step();
  return gdx::exec::load_flag(from);
}
inline std::uint32_t load_before_fence(const std::uint32_t* from) {
  sim::step();
  return gdx::exec::load_before_fence(from);
}
inline std::uint64_t load_acquire(const std::uint64_t* from) {
  sim::step();
  return sim::loaded(from, gdx::exec::load_acquire(from));
}
inline std::uint32_t fetch_add(std::uint32_t* to, std::uint32_t n) {
  sim::step();
  return gdx::exec::fetch_add(to, n);
}
template <typename Word>
Word compare_swap(Word* to, std::type_identity_t<Word> expected, std::type_identity_t<Word> desired) {
  sim::step();
  return gdx::exec::compare_swap(to, expected, desired);
}
template <typename Word>
void publish(Word* to, std::type_identity_t<Word> value) {
  sim::step();
  gdx::exec::publish(to, value);
  sim::published(to, value);
}
inline void store_counter(std::uint32_t* to, std::uint32_t value) {
  sim::step();
  gdx::exec::store_counter(to, value);
  sim::stored(to, value);
}
inline void store_record(Be32* to, Be32 value) {
  sim::step();
  gdx::exec::store_record(to, value);
}
inline void store_doorbell(std::uint64_t* doorbell, std::uint64_t value) {
  sim::step();
  gdx::exec::store_doorbell(doorbell, value);
  sim::rang(value);
}
template <int Offset = 0>
void store_segment(void* to, const Segment& segment) {
  sim::step();
  gdx::exec::store_segment<Offset>(to, segment);
}
// Copies nothing: the world keeps the content of slots, and a source's address represents its content.
template <Scope>
void fill_slot(std::byte* to, const std::byte* from, std::uint32_t /*bytes*/) {
  sim::step();
  sim::begin_fill(to);
  sim::step();
  sim::end_fill(to, from);
}
inline std::uint64_t now_ns() { return sim::now_ns; }
inline void relax() { sim::step(); }

}  // namespace gdx::device::exec
