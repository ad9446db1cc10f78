// Static programs among ELF files, each with one thing different.
#include <elf.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "host/programs/cli/launcher.h"

namespace gdx {
namespace static_program_test {

// Parts of an ELF file, in the order of the file.
struct Elf {
  Elf64_Ehdr header{};
  std::vector<Elf64_Phdr> segments;
  std::vector<Elf64_Dyn> entries;  // of the dynamic segment
  std::size_t missing_bytes = 0;   // at the end
};

// Static, at any address.
Elf static_pie() {
  Elf elf;
  std::memcpy(elf.header.e_ident, ELFMAG, SELFMAG);
  elf.header.e_ident[EI_CLASS] = ELFCLASS64;
  elf.header.e_type = ET_DYN;
  elf.header.e_phoff = sizeof(Elf64_Ehdr);
  elf.header.e_phentsize = sizeof(Elf64_Phdr);
  elf.segments.resize(3);
  elf.segments[0].p_type = PT_LOAD;
  elf.segments[1].p_type = PT_DYNAMIC;
  elf.segments[2].p_type = PT_NOTE;
  elf.entries = {{DT_STRTAB, {DF_1_PIE}}, {DT_FLAGS, {DF_BIND_NOW}}, {DT_FLAGS_1, {DF_1_NOW | DF_1_PIE}}};
  return elf;
}

bool is_static(Elf elf) {
  elf.header.e_phnum = static_cast<Elf64_Half>(elf.segments.size());
  std::vector<char> bytes;
  const auto append = [&bytes](const auto& part) {
    const auto* const first = reinterpret_cast<const char*>(&part);
    bytes.insert(bytes.end(), first, first + sizeof part);
  };
  for (Elf64_Phdr& segment : elf.segments) {
    if (segment.p_type != PT_DYNAMIC) continue;
    segment.p_offset = sizeof elf.header + elf.segments.size() * sizeof segment;
    segment.p_filesz = elf.entries.size() * sizeof(Elf64_Dyn);
  }
  append(elf.header);
  for (const Elf64_Phdr& segment : elf.segments) append(segment);
  for (const Elf64_Dyn& entry : elf.entries) append(entry);
  // Stands behind the dynamic segment, where no entry is looked for.
  append(Elf64_Dyn{DT_FLAGS_1, {DF_1_PIE}});
  bytes.resize(bytes.size() - elf.missing_bytes);
  const std::string path = testing::TempDir() + "gdx-elf-" + std::to_string(getpid());
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const bool found = is_static_program(path);
  std::filesystem::remove(path);
  return found;
}

TEST(StaticProgram, is_one_without_an_interpreter) {
  EXPECT_TRUE(is_static(static_pie()));
  const std::pair<const char*, std::function<void(Elf&)>> changes_to_static[] = {
      {"at a fixed address", [](Elf& elf) { elf.header.e_type = ET_EXEC; }},
      {"at a fixed address, without entries",
       [](Elf& elf) {
         elf.header.e_type = ET_EXEC;
         elf.entries.clear();
       }},
      {"flags first", [](Elf& elf) { std::swap(elf.entries[0], elf.entries[2]); }},
  };
  for (const auto& [what, change] : changes_to_static) {
    Elf elf = static_pie();
    change(elf);
    EXPECT_TRUE(is_static(elf)) << what;
  }
  const std::pair<const char*, std::function<void(Elf&)>> changes_to_another[] = {
      {"an interpreter", [](Elf& elf) { elf.segments[0].p_type = PT_INTERP; }},
      {"an interpreter last", [](Elf& elf) { elf.segments[2].p_type = PT_INTERP; }},
      {"an interpreter, at a fixed address",
       [](Elf& elf) {
         elf.header.e_type = ET_EXEC;
         elf.segments[2].p_type = PT_INTERP;
       }},
      {"a library", [](Elf& elf) { elf.entries[2].d_un.d_val = DF_1_NOW; }},
      {"no flags", [](Elf& elf) { elf.entries.pop_back(); }},
      {"flags cut off", [](Elf& elf) { elf.missing_bytes = sizeof(Elf64_Dyn) + 1; }},
      {"segments cut off", [](Elf& elf) { elf.missing_bytes = 4 * sizeof(Elf64_Dyn) + 1; }},
      {"a fixed address and segments cut off",
       [](Elf& elf) {
         elf.header.e_type = ET_EXEC;
         elf.missing_bytes = 4 * sizeof(Elf64_Dyn) + 1;
       }},
      {"no dynamic segment", [](Elf& elf) { elf.segments[1].p_type = PT_NOTE; }},
      {"an object file", [](Elf& elf) { elf.header.e_type = ET_REL; }},
      {"a core", [](Elf& elf) { elf.header.e_type = ET_CORE; }},
      {"32 bits", [](Elf& elf) { elf.header.e_ident[EI_CLASS] = ELFCLASS32; }},
      {"another magic", [](Elf& elf) { elf.header.e_ident[EI_MAG3] = 'f'; }},
      {"other segments", [](Elf& elf) { elf.header.e_phentsize = sizeof(Elf64_Phdr) + 8; }},
  };
  for (const auto& [what, change] : changes_to_another) {
    Elf elf = static_pie();
    change(elf);
    EXPECT_FALSE(is_static(elf)) << what;
  }
  EXPECT_FALSE(is_static_program("/nowhere/gdx"));
  EXPECT_FALSE(is_static_program(testing::TempDir()));
}

}  // namespace static_program_test
}  // namespace gdx
