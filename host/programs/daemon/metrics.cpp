#include "host/programs/daemon/metrics.h"

#include <fmt/format.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/output.h"
#include "host/programs/daemon/metrics_listener.h"

namespace gdx::daemon {
namespace {

using Json = nlohmann::json;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// Counter names end in _total, others are gauges. A series that is added to twice is the sum.
class Families {
 public:
  void add(const std::string& name, const char* what, Labels labels, double value) {
    Family& family = families_[name];
    family.what = what;
    family.series[std::move(labels)] += value;
  }
  [[nodiscard]] std::vector<MetricFamily> take() {
    std::vector<MetricFamily> all;
    all.reserve(families_.size());
    for (auto& [name, family] : families_) {
      const bool counter = name.ends_with("_total");
      all.push_back({name, family.what, counter ? MetricType::Counter : MetricType::Gauge, {}});
      all.back().metric.reserve(family.series.size());
      for (auto& [labels, value] : family.series) {
        ClientMetric& metric = all.back().metric.emplace_back();
        metric.label = labels;
        (counter ? metric.counter.value : metric.gauge.value) = value;
      }
    }
    return all;
  }

 private:
  struct Family {
    const char* what = "";
    std::map<Labels, double> series;
  };
  std::map<std::string, Family> families_;
};

std::string text_of(const Json& json, const char* key) {
  const Json& value = json.at(key);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void add_user(Families& to, std::map<std::string, Json>& hcas, const Json& user) {
  const std::string uid = text_of(user, "uid");
  const auto gauge = [&](const char* key, const char* what) {
    to.add(fmt::format("gdx_user_{}", key), what, {{"uid", uid}}, user.at(key).get<double>());
  };
  gauge("clients", "Programs of the user.");
  gauge("endpoints", "Endpoints of the user.");
  gauge("regions", "Registered regions of the user.");
  gauge("registered_bytes", "Registered bytes of the user, with queues and pools of host memory.");
  for (const Json& pool : user.at("pools")) {
    const Labels labels{{"hca", text_of(pool, "hca")}, {"memory", text_of(pool, "memory")}, {"uid", uid}};
    const auto figure = [&](const char* name, const char* key, const char* what) {
      to.add(fmt::format("gdx_pool_{}", name), what, labels, pool.at(key).get<double>());
    };
    figure("bytes", "bytes", "Bytes of the user's staging pools.");
    figure("slots", "slots", "Slots of the user's staging pools.");
    figure("leased_slots", "leased_slots", "Slots that endpoints hold.");
    figure("bad_returns_total", "bad_returns", "Returned slots that their endpoint did not hold.");
  }
  // Takes any user's counters of an HCA, because they are the port's, and so the same for all users.
  for (const Json& hca : user.at("hcas")) hcas[text_of(hca, "name")] = hca.at("counters");
}

void add_client(Families& to, const Json& client) {
  const Labels who{{"pid", text_of(client, "pid")},
                   {"program", text_of(client, "program")},
                   {"uid", text_of(client, "uid")}};
  const auto gauge = [&](const char* key, const char* what, double value) {
    to.add(fmt::format("gdx_client_{}", key), what, who, value);
  };
  gauge("endpoints", "Endpoints of the program.", static_cast<double>(client.at("endpoints").size()));
  gauge("regions", "Registered regions of the program.", client.at("regions").get<double>());
  gauge("registered_bytes", "Bytes in the program's registered regions.",
        client.at("registered_bytes").get<double>());
  for (const Json& endpoint : client.at("endpoints")) {
    const Labels labels{{"hca", text_of(client, "hca")},
                        {"pid", text_of(client, "pid")},
                        {"qpn", text_of(endpoint, "qpn")},
                        {"uid", text_of(client, "uid")}};
    const auto figure = [&](const char* name, const char* key, const char* what) {
      to.add(fmt::format("gdx_endpoint_{}", name), what, labels, endpoint.at(key).get<double>());
    };
    figure("posted_wqebbs_total", "posted_blocks", "Send queue blocks rung to the HCA, modulo 2^32.");
    figure("completed_wqebbs_total", "completed_blocks", "Send queue blocks known complete, modulo 2^32.");
    figure("credit_stalls_total", "stalls", "Pushes that waited for a staging slot.");
    figure("syndrome", "syndrome", "Syndrome of the endpoint's first error; 0: healthy.");
  }
}

std::vector<MetricFamily> families_of(const Json& all) {
  Families families;
  families.add("gdx_daemon_info", "Version of gdxd.", {{"version", text_of(all, "gdxd_version")}}, 1);
  families.add("gdx_daemon_draining", "1: gdxd takes no more programs.", {},
               all.at("draining").get<bool>() ? 1 : 0);
  std::map<std::string, Json> hcas;
  for (const Json& user : all.at("users")) add_user(families, hcas, user);
  for (const auto& [name, counters] : hcas) {
    for (const auto& [counter, value] : counters.items())
      families.add(fmt::format("gdx_hca_{}_total", counter), "The HCA's hardware counter of this name.",
                   {{"hca", name}}, value.get<double>());
  }
  for (const Json& client : all.at("clients")) add_client(families, client);
  return families.take();
}

class ServedMetrics final : public Metrics {
 public:
  explicit ServedMetrics(std::unique_ptr<MetricsListener> listener) : listener_(std::move(listener)) {}

 private:
  std::unique_ptr<MetricsListener> listener_;
};

}  // namespace

Result<std::unique_ptr<Metrics>> Metrics::serve(const MetricsAddress& address,
                                                std::function<std::string()> statistics,
                                                std::function<bool(uid_t)> admits) {
  const auto page = [statistics = std::move(statistics)] {
    return prometheus::TextSerializer().Serialize(families_of(Json::parse(statistics())));
  };
  auto listener = MetricsListener::listen(address, page, std::move(admits));
  if (!listener) {
    return fail(
        Status::kSystem,
        fmt::format("cannot listen at {} for metrics ({}): the port may be in use, or no address of this "
                    "machine; choose another --metrics",
                    address.listening, listener.error().message));
  }
  print_error("gdxd's metrics are at http://{}/metrics\n", (*listener)->place());
  return std::make_unique<ServedMetrics>(std::move(*listener));
}

}  // namespace gdx::daemon
