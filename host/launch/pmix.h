// Declarations of libpmix's calls, for a library that is loaded when a process runs. A test compares them
// with the library's own header where that is installed. Source: PMIx Standard 4.1, chapters 3 and 7.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gdx::launch::pmix {

inline constexpr int kSuccess = 0;
inline constexpr std::uint16_t kString = 3;
inline constexpr std::uint16_t kUint32 = 14;
inline constexpr std::uint8_t kGlobal = 3;  // the scope of what all ranks may read
inline constexpr std::uint32_t kEveryRank = UINT32_MAX - 1;
inline constexpr std::size_t kNamespaceBytes = 256;

struct Process {
  char space[kNamespaceBytes];
  std::uint32_t rank;
};

struct Value {
  std::uint16_t type;
  union {
    std::uint32_t uint32;
    char* string;
    void* largest[3];
  } data;
};

using Answer = void (*)(int status, const Value* value, void* context);

using Init = int (*)(Process* self, void* information, std::size_t count);
using Finalize = int (*)(const void* information, std::size_t count);
using Put = int (*)(std::uint8_t scope, const char* key, Value* value);
using Commit = int (*)();
using GetNb = int (*)(const Process* process, const char* key, const void* information, std::size_t count,
                      Answer answer, void* context);
using ErrorString = const char* (*)(int status);

}  // namespace gdx::launch::pmix
