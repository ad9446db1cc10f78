// Facts that somebody far away asks for first: the program's call, libraries and variables, and the kernel's
// files on the machine, its HCAs and its GPUs. Nothing here is judged.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/programs/doctor/machine.h"

namespace gdx::doctor {

struct PciFunction {
  std::string bus_id;
  std::string iommu;                  // finding and evidence of judge_iommu()
  std::optional<std::string> config;  // bytes without zeros at the end; 64 at most, unless for root
};

struct Environment {
  std::string host;
  std::string time;  // UTC, ISO 8601
  std::vector<std::string> command_line;
  // Variables at the program's start, by name: those of gdx, verbs, CUDA and the dynamic linker, and no
  // others.
  std::vector<std::pair<std::string, std::string>> variables;
  std::vector<std::string> libraries;  // files of verbs, CUDA and the software HCA that are loaded
  // Files by their paths, with their text; nullopt for a file that cannot be read.
  std::vector<std::pair<std::string, std::optional<std::string>>> files;
  std::vector<PciFunction> functions;  // HCAs, GPUs and all bridges above them
  // Newest lines of dmesg on HCAs, GPUs, PCI errors and the IOMMU; or one that says why it cannot be read.
  std::vector<std::string> kernel_log;
};

// Reads the environment of the machine whose `machine.hcas` are known. Threads: those of the probes.
[[nodiscard]] Environment read_environment(const Machine& machine);

}  // namespace gdx::doctor
