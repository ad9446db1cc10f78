#include "host/team/only_copy.h"

#include <fmt/format.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace gdx::team {
namespace {

constexpr std::string_view kOwner{"gdx", sizeof "gdx"};  // with its end, as notes have it
constexpr std::uint32_t kCopy = 1;

// An ELF note, because the loader maps notes of every file and shows where, whatever symbols the file
// exports.
struct Note {
  ElfW(Nhdr) header;
  char owner[sizeof "gdx"];
};
[[gnu::section(".note.gdx"), gnu::used]] alignas(4) constexpr Note kNote = {{kOwner.size(), 0, kCopy}, "gdx"};

bool holds_note(std::string_view notes, std::size_t alignment) {
  const auto aligned = [alignment](std::size_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  };
  ElfW(Nhdr) header;
  while (notes.size() >= sizeof header) {
    std::memcpy(&header, notes.data(), sizeof header);
    notes.remove_prefix(sizeof header);
    const std::size_t bytes = aligned(aligned(header.n_namesz) + header.n_descsz);
    if (header.n_type == kCopy && notes.substr(0, header.n_namesz) == kOwner) return true;
    notes.remove_prefix(std::min(bytes, notes.size()));
  }
  return false;
}

int add_copy(dl_phdr_info* file, std::size_t, void* found) {
  for (std::size_t i = 0; i < file->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = file->dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    const std::string_view notes(reinterpret_cast<const char*>(file->dlpi_addr + part.p_vaddr), part.p_memsz);
    if (!holds_note(notes, part.p_align == 8 ? 8 : 4)) continue;
    const std::string path = file->dlpi_name;
    static_cast<std::vector<std::string>*>(found)->push_back(path.empty() ? "the program itself" : path);
    break;
  }
  return 0;
}

}  // namespace

Result<void> check_only_copy() {
  std::vector<std::string> copies;
  dl_iterate_phdr(add_copy, &copies);
  if (copies.size() < 2) return {};
  return fail(Status::kUnsupported,
              fmt::format("this process holds {} copies of gdx: in {}; link all its parts to one libgdx.so "
                          "(gdx::gdx)",
                          copies.size(), fmt::join(copies, " and in ")));
}

}  // namespace gdx::team
