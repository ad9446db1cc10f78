// Output of ranks, line by line behind the number of the rank: "3: text". As `srun --label` prints it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/descriptor.h"
#include "base/result.h"

namespace gdx {

// One thread reads what all ranks write and writes whole lines, so lines of two ranks never mix.
class LabelledOutput {
 public:
  explicit LabelledOutput(std::uint32_t ranks);

  // Returns the ends into which the next rank writes, for its stdout and its stderr. Errors: kSystem.
  [[nodiscard]] Result<std::array<Descriptor, 2>> add_rank();
  // Starts the thread, after the last rank. It raises SIGCHLD when it ends. Errors: kSystem.
  [[nodiscard]] Result<void> start();
  // Makes the thread end once it has written what pipes now hold, even if a process still keeps one open.
  void finish();
  [[nodiscard]] bool is_finished() const;
  // Returns the error with which stdout refused a line; 0: none. Only once it is finished.
  [[nodiscard]] int lost_errno() const;

 private:
  class Reader;
  std::shared_ptr<Reader> reader_;  // the thread's too, because a stdout that takes nothing can hold it
  std::size_t label_width_;
  std::uint32_t ranks_ = 0;
  Descriptor finish_;  // closing it ends the thread
};

}  // namespace gdx
