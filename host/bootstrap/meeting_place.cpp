#include "host/bootstrap/meeting_place.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "host/bootstrap/admission.h"
#include "host/bootstrap/socket.h"

namespace gdx::bootstrap {
namespace {

constexpr char kLoopback[] = "127.0.0.1";
constexpr char kBeforeSecret = ';';
constexpr std::size_t kMaxTold = 8;  // addresses: more may not fit into a launcher's value

std::uint32_t bits_of(const std::vector<std::byte>& mask) {
  std::uint32_t bits = 0;
  for (const std::byte one : mask)
    bits += static_cast<std::uint32_t>(std::popcount(std::to_integer<unsigned>(one)));
  return bits;
}

// Returns the bytes of an IP address; none for other families.
std::vector<std::byte> bytes_of(const sockaddr* address) {
  std::vector<std::byte> bytes;
  if (address == nullptr) return bytes;
  if (address->sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    bytes.resize(sizeof v4);
    std::memcpy(bytes.data(), &v4, sizeof v4);
  } else if (address->sa_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&v6)) return bytes;
    bytes.resize(sizeof v6);
    std::memcpy(bytes.data(), &v6, sizeof v6);
  }
  return bytes;
}

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes(text.find(':') == std::string::npos ? sizeof(in_addr) : sizeof(in6_addr));
  const int family = bytes.size() == sizeof(in_addr) ? AF_INET : AF_INET6;
  if (inet_pton(family, text.c_str(), bytes.data()) != 1) bytes.clear();
  return bytes;
}

bool is_near(const std::vector<std::byte>& address, const HostAddress& own) {
  if (address.size() != own.bytes.size()) return false;
  for (std::uint32_t bit = 0; bit < own.prefix_bits; ++bit) {
    const auto differs = std::to_integer<unsigned>(address[bit / 8] ^ own.bytes[bit / 8]);
    if ((differs >> (7 - bit % 8) & 1U) != 0) return false;
  }
  return true;
}

std::string join_host_port(const std::string& host, const std::string& port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

// Returns what stands between commas.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

// Listens on all addresses of a family, and writes "PORT,ADDRESS,ADDRESS".
Result<Descriptor> listen_and_tell(std::string& told) {
  const auto own = GDX_TRY(host_addresses());
  const std::size_t length = own.empty() ? 0 : own.front().bytes.size();
  auto listener = GDX_TRY(listen_on(length == 0 ? kLoopback : length == sizeof(in_addr) ? "0.0.0.0" : "::"));
  const auto place = GDX_TRY(parse_host_port(own_text(listener)));
  told = place.port;
  if (length == 0) told += fmt::format(",{}", kLoopback);
  std::size_t count = 0;
  for (const HostAddress& address : own) {
    if (address.bytes.size() == length && count++ < kMaxTold) told += fmt::format(",{}", address.text);
  }
  return listener;
}

Result<std::string> root_of(const std::string& told) {
  const auto words = words_of(told);
  const std::span<const std::string> addresses = std::span(words).subspan(1);
  const bool whole = !addresses.empty() && std::ranges::none_of(addresses, [](const std::string& address) {
    return bytes_of(address).empty();
  });
  const auto own = GDX_TRY(host_addresses());
  const std::string root = whole ? join_host_port(choose_address(addresses, own), words.front()) : "";
  if (whole && parse_host_port(root)) return root;
  return fail(Status::kVersionMismatch,
              fmt::format("'{}' is not where a rank 0 listens: start the same program on all ranks", told));
}

}  // namespace

Result<std::vector<HostAddress>> host_addresses() {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0)
    return fail(Status::kSystem, fmt::format("no addresses of this host: {}", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(found, &freeifaddrs);
  std::vector<HostAddress> addresses;
  for (const ifaddrs* one = list.get(); one != nullptr; one = one->ifa_next) {
    if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    HostAddress address{.text = {},
                        .bytes = bytes_of(one->ifa_addr),
                        .prefix_bits = bits_of(bytes_of(one->ifa_netmask)),
                        .interface = one->ifa_name};
    if (address.bytes.empty()) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    inet_ntop(one->ifa_addr->sa_family, address.bytes.data(), text.data(), text.size());
    address.text = text.data();
    addresses.push_back(std::move(address));
  }
  std::ranges::stable_sort(addresses, {}, [](const HostAddress& address) { return address.bytes.size(); });
  return addresses;
}

std::vector<HostAddress> addresses_named(std::span<const HostAddress> own, std::string_view words) {
  const auto takes = [&](char sign) {
    const bool has = words.starts_with(sign);
    if (has) words.remove_prefix(1);
    return has;
  };
  const bool leaves_out = takes('^');
  const bool is_whole = takes('=');
  const auto names = words_of(words);
  std::vector<HostAddress> named;
  std::ranges::copy_if(own, std::back_inserter(named), [&](const HostAddress& address) {
    return leaves_out != std::ranges::any_of(names, [&](const std::string& name) {
             return is_whole ? address.interface == name
                             : !name.empty() && address.interface.starts_with(name);
           });
  });
  return named;
}

std::string choose_address(std::span<const std::string> of_root, std::span<const HostAddress> own) {
  std::optional<std::string> elsewhere;
  for (const std::string& address : of_root) {
    if (std::ranges::find(own, address, &HostAddress::text) != own.end()) continue;
    const auto bytes = bytes_of(address);
    if (std::ranges::any_of(own, [&](const HostAddress& one) { return is_near(bytes, one); })) return address;
    if (!elsewhere) elsewhere = address;
  }
  return elsewhere.value_or(of_root.front());
}

// Ranks of one host meet at a local socket, which needs no secret. Else rank 0 tells one behind the
// addresses.
Result<Descriptor> settle_root(WorldOptions& options, std::uint64_t deadline_ns) {
  if (!options.tell_root) return options.rank == 0 ? listen_at(options.root, true) : Descriptor();
  std::string mine;
  Descriptor listener;
  Secret::Ptr secret;
  if (options.rank == 0 && options.one_host) {
    listener = GDX_TRY(listen_on("unix:"));
    mine = own_text(listener);
  } else if (options.rank == 0) {
    listener = GDX_TRY(listen_and_tell(mine));
    if (!options.secret) secret = GDX_TRY(secret_to_tell());
    if (secret) mine += kBeforeSecret + secret->text();
  }
  const auto told = GDX_TRY(options.tell_root(mine, deadline_ns));
  const std::size_t end = std::min(told.find(kBeforeSecret), told.size());
  if (!secret && end != told.size()) secret = GDX_TRY(Secret::from_text(told.substr(end + 1)));
  if (!options.secret) options.secret = std::move(secret);
  const std::string place = told.substr(0, end);
  options.root = is_local(place) ? place : GDX_TRY(root_of(place));
  return listener;
}

}  // namespace gdx::bootstrap
