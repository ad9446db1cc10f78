// The secret of a job: 256 random bits that its ranks have and nobody else. It lies in a page of its own,
// which core files leave out and which is wiped in the end. What shows it to others is where it came from
// (admission.h).
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/descriptor.h"
#include "base/mapped_pages.h"
#include "base/result.h"
#include "proto/bootstrap/secret.h"

namespace gdx::bootstrap {

using ChannelKey = std::array<std::byte, kChannelKeyBytes>;

// Threads: any.
class Secret {
 public:
  using Ptr = std::shared_ptr<const Secret>;

  // Makes a new one. Errors: kNoMemory; kSystem (no random bytes).
  [[nodiscard]] static Result<Ptr> make();
  // Reads the 32 bytes of a file of this process's user, which nobody else may open.
  // Errors: kInvalidArgument naming the file and what is wrong with it; kNoMemory.
  [[nodiscard]] static Result<Ptr> from_file(const std::string& path);
  // Reads text(), as a launcher's store has carried it. Errors: kVersionMismatch (it is none); kNoMemory.
  [[nodiscard]] static Result<Ptr> from_text(const std::string& text);
  // Reads what share() returned, perhaps in another process. The descriptor stays open, because programs that
  // this one starts may need it. Where a program in between has closed it, as sudo and Python's subprocess
  // do, that of a process above this one is opened, by /proc. Errors: kInvalidArgument (nobody above has it,
  // or lets this user see it); kNoMemory.
  [[nodiscard]] static Result<Ptr> from_descriptor(int descriptor);

  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret();

  // Returns a file without a name that holds the secret and cannot be changed. Closed on exec until its flag
  // is taken away. Errors: kSystem.
  [[nodiscard]] Result<Descriptor> share() const;

  // Returns hexadecimal digits for a launcher's store, and for nothing else.
  [[nodiscard]] std::string text() const;

  // Derives the key of one direction between two ranks. The caller wipes it after use. Errors: kSystem.
  [[nodiscard]] Result<ChannelKey> key_of(const ChannelIdentity& identity) const;

 private:
  Secret() = default;
  [[nodiscard]] static Result<std::shared_ptr<Secret>> reserve();
  [[nodiscard]] static Result<Ptr> read(int descriptor, const std::string& name);
  [[nodiscard]] std::span<std::byte, kSecretBytes> bytes() const {
    return std::span<std::byte, kSecretBytes>(page_.get(), kSecretBytes);
  }

  MappedPages page_;
};

// Overwrites bytes, also where no compiler sees a reader of them.
void wipe(std::span<std::byte> bytes);

}  // namespace gdx::bootstrap
