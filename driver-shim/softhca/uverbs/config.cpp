#include "driver-shim/softhca/uverbs/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/parse_number.h"
#include "driver-shim/softhca/uverbs/page_file.h"

namespace gdx::softhca::uverbs {
namespace {

constexpr std::uint64_t kMaxQuantumBytes = 16 << 20;
constexpr std::uint64_t kMinReceiveBufferBytes = 128 << 10;
constexpr std::uint64_t kMaxReceiveBufferBytes = 256 << 20;
constexpr std::size_t kMaxPkeys = 128;  // as many as a ConnectX has
constexpr double kMinRateGbps = 0.001;
constexpr double kMaxRateGbps = 10'000;
constexpr double kStrictSpoiledCopies = 0.1;

tl::unexpected<Error> bad(const char* name, std::string_view value, std::string_view allowed) {
  return fail(Status::kInvalidArgument, fmt::format("{}={}: must be {}", name, value, allowed));
}

template <typename T>
bool parse_whole(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

struct Probability {
  const char* name;
  double* value;
};

Result<void> read_probability(const Environment& environment, Probability field) {
  const char* const text = environment(field.name);
  if (text == nullptr || *text == '\0') return {};
  double value = 0;
  if (!parse_whole<double>(text, value) || !std::isfinite(value) || value < 0 || value > 1) {
    return bad(field.name, text, "a probability from 0 to 1");
  }
  *field.value = value;
  return {};
}

// Reads an integer into `value` where the variable is set. `allowed` is for the message.
Result<void> read_integer(const Environment& environment, const char* name, std::string_view allowed,
                          const std::function<bool(std::uint64_t)>& permitted, std::uint64_t& value) {
  const char* const text = environment(name);
  if (text == nullptr || *text == '\0') return {};
  std::uint64_t parsed = 0;
  if (!parse_whole<std::uint64_t>(text, parsed) || !permitted(parsed)) return bad(name, text, allowed);
  value = parsed;
  return {};
}

// Counted in the last 32 bits, which for IPv4 is the address.
wire::Address following(const wire::Address& address, std::uint32_t steps) {
  const std::uint32_t last = address.ipv4_host_order() + steps;
  wire::Address next = address;
  const wire::Address counted = wire::Address::ipv4(last);
  std::copy(counted.gid.end() - sizeof last, counted.gid.end(), next.gid.end() - sizeof last);
  return next;
}

std::string expand_pid(std::string path, int pid) {
  const std::size_t at = path.find("%p");
  if (at != std::string::npos) path.replace(at, 2, std::to_string(pid));
  return path;
}

Result<void> read_faults(const Environment& environment, wire::FaultConfig& faults) {
  const std::array<Probability, 6> fields = {{{"GDX_SOFTHCA_LOSS", &faults.loss},
                                              {"GDX_SOFTHCA_CORRUPT", &faults.corrupt},
                                              {"GDX_SOFTHCA_DUPLICATE", &faults.duplicate},
                                              {"GDX_SOFTHCA_REORDER", &faults.reorder},
                                              {"GDX_SOFTHCA_MARK", &faults.mark},
                                              {"GDX_SOFTHCA_DEATH", &faults.death}}};
  for (const Probability& field : fields) {
    if (auto read = read_probability(environment, field); !read) return read;
  }
  return read_integer(
      environment, "GDX_SOFTHCA_SEED", "an unsigned integer", [](std::uint64_t) { return true; },
      faults.seed);
}

template <typename T, std::size_t kCount>
using Names = std::array<std::pair<std::string_view, T>, kCount>;

// Reads one of `names` where the variable is set. `allowed` is for the message.
template <typename T, std::size_t kCount>
Result<void> read_name(const Environment& environment, const char* name, std::string_view allowed,
                       const Names<T, kCount>& names, T& value) {
  const char* const text = environment(name);
  if (text == nullptr || *text == '\0') return {};
  const auto* const found = std::ranges::find(names, text, &std::pair<std::string_view, T>::first);
  if (found == names.end()) return bad(name, text, allowed);
  value = found->second;
  return {};
}

Result<void> read_carrier(const Environment& environment, wire::Carrier& carrier) {
  static constexpr Names<wire::Carrier, 3> kNames{
      {{"udp", wire::Carrier::kUdp}, {"shm", wire::Carrier::kSharedMemory}, {"auto", wire::Carrier::kAuto}}};
  return read_name(environment, "GDX_SOFTHCA_WIRE", "udp, shm or auto", kNames, carrier);
}

enum class LinkLayer { kEthernet, kInfiniBand, kInfiniBandGrh };

Result<void> read_link_layer(const Environment& environment, HcaConfig& config) {
  static constexpr Names<LinkLayer, 3> kNames{{{"ethernet", LinkLayer::kEthernet},
                                               {"infiniband", LinkLayer::kInfiniBand},
                                               {"infiniband_grh", LinkLayer::kInfiniBandGrh}}};
  auto layer = LinkLayer::kEthernet;
  GDX_TRY(read_name(environment, "GDX_SOFTHCA_LINK_LAYER", "ethernet, infiniband or infiniband_grh", kNames,
                    layer));
  config.infiniband = layer != LinkLayer::kEthernet;
  config.grh_required = layer == LinkLayer::kInfiniBandGrh;
  return {};
}

// Reads the port's P_Key table, which begins with the default partition, because subnet managers put it there
// and rdma_cm goes by the first entry.
Result<void> read_pkeys(const Environment& environment, HcaConfig& config) {
  constexpr char kName[] = "GDX_SOFTHCA_PKEYS";
  const char* const text = environment(kName);
  if (text == nullptr || *text == '\0') return {};
  const std::string_view all = text;
  std::vector<std::uint16_t> pkeys;
  std::size_t begin = 0;
  while (begin <= all.size()) {
    const std::size_t end = std::min(all.find(',', begin), all.size());
    const auto pkey = parse_hexadecimal(all.substr(begin, end - begin));
    if (!pkey || *pkey > UINT16_MAX) break;
    pkeys.push_back(static_cast<std::uint16_t>(*pkey));
    begin = end + 1;
  }
  const bool whole = begin > all.size() && pkeys.size() <= kMaxPkeys;
  const bool by_default = whole && (pkeys.front() & roce::kPartitionMask) == roce::kPartitionMask;
  if (!by_default || !config.infiniband)
    return bad(kName, text,
               "1 to 128 P_Keys of an InfiniBand port, as 0xffff,0x8001; the first 0xffff or 0x7fff");
  config.pkeys = std::move(pkeys);
  return {};
}

Result<void> read_data_order(const Environment& environment, OrderRule& order) {
  static constexpr Names<OrderRule, 3> kNames{
      {{"chosen", OrderRule::kChosen}, {"kept", OrderRule::kKept}, {"any", OrderRule::kAny}}};
  return read_name(environment, "GDX_SOFTHCA_DATA_ORDER", "chosen, kept or any", kNames, order);
}

Result<void> read_congestion_control(const Environment& environment, CongestionControl& control) {
  static constexpr Names<CongestionControl, 2> kNames{
      {{"dcqcn", CongestionControl::kDcqcn}, {"none", CongestionControl::kNone}}};
  return read_name(environment, "GDX_SOFTHCA_CONGESTION_CONTROL", "dcqcn or none", kNames, control);
}

Result<void> read_record_use(const Environment& environment, RecordUse& use) {
  static constexpr Names<RecordUse, 2> kNames{
      {{name(RecordUse::kRead), RecordUse::kRead}, {name(RecordUse::kUnread), RecordUse::kUnread}}};
  return read_name(environment, "GDX_SOFTHCA_RECORD", "read or unread", kNames, use);
}

Result<void> read_planted_fault(const Environment& environment, PlantedFault& fault) {
  std::string names;
  for (const auto& [name, planted] : kPlantedFaults)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  return read_name(environment, "GDX_SOFTHCA_FAULT", "one of " + names, kPlantedFaults, fault);
}

Result<void> read_sending(const Environment& environment, HcaConfig& config) {
  std::uint64_t quantum_bytes = config.quantum_bytes;
  const auto is_quantum = [](std::uint64_t value) { return value >= 256 && value <= kMaxQuantumBytes; };
  if (auto read = read_integer(environment, "GDX_SOFTHCA_QUANTUM_BYTES", "256 to 16777216", is_quantum,
                               quantum_bytes);
      !read) {
    return read;
  }
  config.quantum_bytes = static_cast<std::uint32_t>(quantum_bytes);
  if (auto read = read_congestion_control(environment, config.congestion_control); !read) return read;
  std::uint64_t receive_credits = config.receive_credits ? 1 : 0;
  const auto is_flag = [](std::uint64_t value) { return value <= 1; };
  if (auto read =
          read_integer(environment, "GDX_SOFTHCA_RECEIVE_CREDITS", "0 or 1", is_flag, receive_credits);
      !read) {
    return read;
  }
  config.receive_credits = receive_credits == 1;
  std::uint64_t receive_window = config.receive_window ? 1 : 0;
  if (auto read = read_integer(environment, "GDX_SOFTHCA_RECEIVE_WINDOW", "0 or 1", is_flag, receive_window);
      !read) {
    return read;
  }
  config.receive_window = receive_window == 1;
  const char* const text = environment("GDX_SOFTHCA_RATE_GBPS");
  if (text == nullptr || *text == '\0') return {};
  double rate_gbps = 0;
  if (!parse_whole<double>(text, rate_gbps) || !(rate_gbps >= kMinRateGbps && rate_gbps <= kMaxRateGbps)) {
    return bad("GDX_SOFTHCA_RATE_GBPS", text, "a rate from 0.001 to 10000, in 10^9 bits a second");
  }
  config.rate_gbps = rate_gbps;
  return {};
}

}  // namespace

Result<Configuration> config_from(const Environment& environment, int pid) {
  Configuration configuration;
  HcaConfig& config = configuration.first;
  if (const char* const address = environment("GDX_SOFTHCA_ADDR"); address != nullptr && *address != '\0') {
    const auto parsed = wire::Address::parse(address);
    if (!parsed) return bad("GDX_SOFTHCA_ADDR", address, "an IP address of this host, such as 127.0.0.5");
    config.udp.address = address;
  }
  config.strict = environment("GDX_STRICT") != nullptr;
  if (config.strict) config.spoiled_copies = kStrictSpoiledCopies;
  GDX_TRY(read_probability(environment, {"GDX_SOFTHCA_SPOILED_COPIES", &config.spoiled_copies}));
  GDX_TRY(read_planted_fault(environment, configuration.fault));
  GDX_TRY(read_faults(environment, config.udp.faults));
  GDX_TRY(read_carrier(environment, config.carrier));
  GDX_TRY(read_link_layer(environment, config));
  GDX_TRY(read_pkeys(environment, config));
  GDX_TRY(read_data_order(environment, config.data_order));
  GDX_TRY(read_record_use(environment, config.record));
  if (const char* const path = environment("GDX_SOFTHCA_PCAP"); path != nullptr) {
    config.udp.pcap_path = expand_pid(path, pid);
  }
  if (const char* const path = environment("GDX_SOFTHCA_COUNTERS"); path != nullptr) {
    configuration.counters_path = expand_pid(path, pid);
  }

  std::uint64_t mtu_bytes = 0;
  const auto is_ib_mtu = [](std::uint64_t value) {
    return std::ranges::count(std::array<std::uint64_t, 5>{256, 512, 1024, 2048, 4096}, value) == 1;
  };
  if (auto read =
          read_integer(environment, "GDX_SOFTHCA_MTU", "256, 512, 1024, 2048 or 4096", is_ib_mtu, mtu_bytes);
      !read) {
    return tl::unexpected(read.error());
  }
  config.mtu_bytes = static_cast<std::uint32_t>(mtu_bytes);

  std::uint64_t receive_buffer_bytes = config.udp.receive_buffer_bytes;
  const auto is_buffer = [](std::uint64_t value) {
    return value >= kMinReceiveBufferBytes && value <= kMaxReceiveBufferBytes;
  };
  if (auto read = read_integer(environment, "GDX_SOFTHCA_RECEIVE_BUFFER_BYTES", "131072 to 268435456",
                               is_buffer, receive_buffer_bytes);
      !read) {
    return tl::unexpected(read.error());
  }
  config.udp.receive_buffer_bytes = receive_buffer_bytes;

  std::uint64_t device_memory_bytes = config.device_memory_bytes;
  const auto is_pool = [](std::uint64_t value) {
    return value % kPageBytes == 0 && value <= kMaxDeviceMemoryBytes;
  };
  if (auto read = read_integer(environment, "GDX_SOFTHCA_DEVICE_MEMORY_BYTES",
                               "a multiple of 4096 from 0 to 1048576", is_pool, device_memory_bytes);
      !read) {
    return tl::unexpected(read.error());
  }
  config.device_memory_bytes = device_memory_bytes;
  GDX_TRY(read_sending(environment, config));

  std::uint64_t hcas = configuration.hcas;
  const auto is_count = [](std::uint64_t value) { return value >= 1 && value <= kMaxHcas; };
  if (auto read =
          read_integer(environment, "GDX_SOFTHCA_HCAS", fmt::format("1 to {}", kMaxHcas), is_count, hcas);
      !read) {
    return tl::unexpected(read.error());
  }
  configuration.hcas = static_cast<std::uint32_t>(hcas);
  return configuration;
}

HcaConfig sibling_config(const HcaConfig& first, const wire::Address& first_address, std::uint32_t index) {
  constexpr std::uint32_t kSeedShift = 32;  // beyond what ranks add to the seed
  HcaConfig config = first;
  config.name = fmt::format("gdx{}", index);
  config.udp.address = following(first_address, index).text();
  config.udp.faults.seed += std::uint64_t{index} << kSeedShift;
  if (index > 0 && !config.udp.pcap_path.empty()) {
    const std::filesystem::path path(config.udp.pcap_path);
    auto named = path.parent_path() / path.stem();
    named += "." + config.name;
    named += path.extension();
    config.udp.pcap_path = named.string();
  }
  return config;
}

}  // namespace gdx::softhca::uverbs
