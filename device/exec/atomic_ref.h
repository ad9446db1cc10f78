// std::atomic_ref of C++20, for kernels that are compiled as C++17.
#pragma once

#include <atomic>

namespace gdx::exec {

template <typename T>
class AtomicRef {
 public:
  explicit AtomicRef(T& word) : word_(&word) {}

  T load(std::memory_order order) const {
    T value;
    __atomic_load(word_, &value, static_cast<int>(order));
    return value;
  }
  void store(T value, std::memory_order order) const {
    __atomic_store(word_, &value, static_cast<int>(order));
  }
  T fetch_add(T n, std::memory_order order) const {
    return __atomic_fetch_add(word_, n, static_cast<int>(order));
  }
  // Stores in `expected` what was there.
  bool compare_exchange_strong(T& expected, T desired, std::memory_order order) const {
    return __atomic_compare_exchange(word_, &expected, &desired, false, static_cast<int>(order),
                                     refused(order));
  }
  bool compare_exchange_weak(T& expected, T desired, std::memory_order order) const {
    return __atomic_compare_exchange(word_, &expected, &desired, true, static_cast<int>(order),
                                     refused(order));
  }

 private:
  // A refused exchange stores nothing, so it releases nothing.
  static int refused(std::memory_order order) {
    if (order == std::memory_order_release) return __ATOMIC_RELAXED;
    return order == std::memory_order_acq_rel ? __ATOMIC_ACQUIRE : static_cast<int>(order);
  }

  T* word_;
};

}  // namespace gdx::exec
