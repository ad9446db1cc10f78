#include "host/programs/cli/stat_text.h"

#include <fmt/format.h>

#include <cstdint>

namespace gdx {
namespace {

using Json = nlohmann::ordered_json;

std::uint64_t count_of(const Json& json, const char* name) { return json.value(name, std::uint64_t{0}); }

// Returns text with rates since an earlier picture, which has the same shape or is null.
std::string hca_text(const Json& hca, const Json& user_before, double seconds) {
  const auto counter = [&](const Json& of, const char* name) { return count_of(of["counters"], name); };
  std::string rate;
  for (const Json& old : user_before.value("hcas", Json::array())) {
    if (old["name"] != hca["name"] || seconds <= 0) continue;
    const std::uint64_t sent = counter(hca, "softhca_packets_sent");
    const std::uint64_t sent_before = counter(old, "softhca_packets_sent");
    if (sent_before > sent) continue;  // an HCA that was opened again counts anew
    rate = fmt::format("{:>10.0f} packets/s sent", static_cast<double>(sent - sent_before) / seconds);
  }
  return fmt::format("  {} at {}: {} resent, {} timeouts, {} NAKs, {} staging violations{}\n",
                     hca["name"].get<std::string>(), hca["address"].get<std::string>(),
                     counter(hca, "softhca_retransmitted_packets"), counter(hca, "local_ack_timeout_err"),
                     counter(hca, "packet_seq_err"), counter(hca, "softhca_staging_violations"), rate);
}

Json find_by(const Json& list, const char* key, const Json& value) {
  for (const Json& one : list) {
    if (one[key] == value) return one;
  }
  return Json::object();
}

// Send queue blocks posted since `before`, a second. A process has a client for each of its HCAs, and queue
// pairs of two HCAs may have one number.
std::string endpoint_rate(const Json& client, const Json& endpoint, const Json& before, double seconds) {
  for (const Json& old : before.value("clients", Json::array())) {
    if (old["pid"] != client["pid"] || old["hca"] != client["hca"]) continue;
    const Json same = find_by(old["endpoints"], "qpn", endpoint["qpn"]);
    if (same.empty() || seconds <= 0) continue;
    const auto blocks =
        static_cast<std::int32_t>(count_of(endpoint, "posted_blocks") - count_of(same, "posted_blocks"));
    if (blocks < 0) break;  // a queue pair that was made again counts anew
    return fmt::format("{:.0f}", blocks / seconds);
  }
  return "-";
}

}  // namespace

std::string stat_text(const Json& now, const Json& before, double seconds) {
  std::string text = fmt::format("gdxd {}{}\n", now["gdxd_version"].get<std::string>(),
                                 now["draining"].get<bool>() ? ", draining" : "");
  for (const Json& user : now["users"]) {
    text += fmt::format("user {}: {} clients, {} endpoints, {} regions, {} MiB registered\n",
                        count_of(user, "uid"), count_of(user, "clients"), count_of(user, "endpoints"),
                        count_of(user, "regions"), count_of(user, "registered_bytes") >> 20);
    const Json user_before = find_by(before.value("users", Json::array()), "uid", user["uid"]);
    for (const Json& hca : user["hcas"]) text += hca_text(hca, user_before, seconds);
    for (const Json& pool : user["pools"]) {
      text +=
          fmt::format("  pool in {} memory of {}: {} of {} slots leased, {} bad returns\n",
                      pool["memory"].get<std::string>(), pool["hca"].get<std::string>(),
                      count_of(pool, "leased_slots"), count_of(pool, "slots"), count_of(pool, "bad_returns"));
    }
  }
  text += fmt::format("{:>8} {:>6} {:<20} {:>9} {:<32} {:>8} {:>8} {}\n", "pid", "uid", "program", "QP",
                      "peer", "stalls", "WQEBB/s", "fault");
  for (const Json& client : now["clients"]) {
    for (const Json& endpoint : client["endpoints"]) {
      text += fmt::format("{:>8} {:>6} {:<20} {:>#9x} {:<32} {:>8} {:>8} {}\n", count_of(client, "pid"),
                          count_of(client, "uid"), client["program"].get<std::string>(),
                          count_of(endpoint, "qpn"), endpoint["peer"].get<std::string>(),
                          count_of(endpoint, "stalls"), endpoint_rate(client, endpoint, before, seconds),
                          count_of(endpoint, "syndrome") == 0
                              ? "-"
                              : fmt::format("syndrome {:#04x}", count_of(endpoint, "syndrome")));
    }
    if (client["endpoints"].empty())
      text += fmt::format("{:>8} {:>6} {:<20}\n", count_of(client, "pid"), count_of(client, "uid"),
                          client["program"].get<std::string>());
  }
  return text;
}

}  // namespace gdx
