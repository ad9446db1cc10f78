#include <elf.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/find_program.h"
#include "host/programs/cli/launcher.h"

namespace gdx {
namespace {

bool is_program_at_any_address(std::ifstream& file, const std::vector<Elf64_Phdr>& segments) {
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_type != PT_DYNAMIC) continue;
    file.seekg(static_cast<std::streamoff>(segment.p_offset));
    for (std::uint64_t read = 0; read < segment.p_filesz; read += sizeof(Elf64_Dyn)) {
      Elf64_Dyn entry{};
      if (!file.read(reinterpret_cast<char*>(&entry), sizeof entry)) return false;
      if (entry.d_tag == DT_FLAGS_1) return (entry.d_un.d_val & DF_1_PIE) != 0;
    }
  }
  return false;
}

}  // namespace

bool is_static_program(const std::string& program) {
  std::ifstream file(find_program(program), std::ios::binary);
  Elf64_Ehdr header{};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header)) return false;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64)
    return false;
  if (header.e_phentsize != sizeof(Elf64_Phdr)) return false;
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  file.seekg(static_cast<std::streamoff>(header.e_phoff));
  for (Elf64_Phdr& segment : segments) {
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof segment)) return false;
    if (segment.p_type == PT_INTERP) return false;
  }
  // Without an interpreter are libraries, the dynamic linker among them, and static programs at any address.
  return header.e_type == ET_EXEC || (header.e_type == ET_DYN && is_program_at_any_address(file, segments));
}

}  // namespace gdx
