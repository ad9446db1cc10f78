#include "host/programs/cli/doctor_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <map>
#include <span>

#include "base/commit.h"
#include "base/output.h"
#include "base/parse_number.h"
#include "host/programs/cli/topology_json.h"

namespace gdx {
namespace {

using doctor::StepReport;

constexpr std::size_t kStepIndent = 34;

const std::map<char, const char*> sections = {{'A', "the machine and its HCAs"},
                                              {'B', "the processor drives the HCA, by loopback"},
                                              {'C', "a GPU drives the HCA"},
                                              {'D', "two hosts"}};

std::string hex(std::span<const std::uint8_t> bytes) { return fmt::format("{:02x}", fmt::join(bytes, "")); }

// A count as a number; a text, and digits that are none, as they are.
OrderedJson fact_json(const std::string& value) {
  const auto number = parse_unsigned(value);
  return number && fmt::format("{}", *number) == value ? OrderedJson(*number) : OrderedJson(value);
}

OrderedJson step_json(const StepReport& report) {
  OrderedJson facts = OrderedJson::array();
  for (const doctor::Fact& fact : report.result.facts) {
    OrderedJson json = {{"name", fact.name}, {"value", fact_json(fact.value)}};
    if (fact.verdict) json["verdict"] = doctor::name(*fact.verdict);
    facts.push_back(std::move(json));
  }
  OrderedJson commands = OrderedJson::array();
  for (const commands::CommandRecord& command : report.commands) {
    commands.push_back({{"command", command.name},
                        {"errno", command.error},
                        {"status", fmt::format("{:#04x}", command.status())},
                        {"syndrome", fmt::format("{:#010x}", command.syndrome())},
                        {"input", hex(command.input)},
                        {"output", hex(command.output)}});
  }
  const std::string& advice = report.result.advice;
  return {{"step", report.step->number},
          {"section", std::string(1, section(*report.step))},
          {"name", report.step->name},
          {"tests", report.step->tests},
          {"seconds", report.seconds},
          {"verdict", doctor::name(report.result.verdict)},
          {"value", report.result.value},
          {"advice", advice.empty() ? OrderedJson(nullptr) : OrderedJson(advice)},
          {"facts", facts},
          {"commands", commands}};
}

doctor::Verdict verdict_of(const StepReport& report) { return report.result.verdict; }

}  // namespace

doctor::Verdict verdict_of_finding(const doctor::Diagnosis& one) { return one.finding.verdict; }

void print_wrapped(std::string head, const std::string& text, std::size_t indent) {
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = text.size();
    if (end - begin > kReportColumns - indent) {
      end = text.rfind(' ', begin + kReportColumns - indent);
      if (end == std::string::npos || end <= begin) end = std::min(text.find(' ', begin), text.size());
    }
    print("{:{}}{}\n", head, indent, text.substr(begin, end - begin));
    head.clear();
    begin = end + 1;
  }
}

std::string counts_text(const VerdictCounts& counts) {
  std::vector<std::string> texts;
  for (const auto& [verdict, count] : counts)
    texts.push_back(fmt::format("{} {}", count, doctor::name(verdict)));
  return fmt::format("{}", fmt::join(texts, ", "));
}

OrderedJson counts_json(const VerdictCounts& counts) {
  OrderedJson json;
  for (const auto& [verdict, count] : counts) json[std::string(doctor::name(verdict))] = count;
  return json;
}

OrderedJson findings_json(const std::vector<doctor::Diagnosis>& all) {
  OrderedJson findings = OrderedJson::array();
  for (const doctor::Diagnosis& one : all) {
    const doctor::Finding& finding = one.finding;
    findings.push_back({{"check", one.check->name},
                        {"subject", finding.subject},
                        {"verdict", doctor::name(finding.verdict)},
                        {"what", finding.what},
                        {"reads", one.check->reads},
                        {"evidence", finding.evidence},
                        {"fix", finding.fix.empty() ? OrderedJson(nullptr) : OrderedJson(finding.fix)}});
  }
  return findings;
}

void print_newest_step(const doctor::BringUpReport& report) {
  if (report.steps.empty()) return;
  const StepReport& one = report.steps.back();
  const char now = section(*one.step);
  if (report.steps.size() == 1 || now != section(*std::prev(report.steps.end(), 2)->step))
    print("{}  {}\n", now, sections.at(now));
  const std::string head =
      fmt::format("  {:7} {:>2} {}", doctor::name(one.result.verdict), one.step->number, one.step->name);
  print_wrapped(head, one.result.value, kStepIndent);
  // Prints the advice on one line, as a fix, so that it can be copied.
  if (!one.result.advice.empty()) print("{:{}}advice: {}\n", "", kStepIndent, one.result.advice);
}

void print_step_counts(const doctor::BringUpReport& report) {
  const std::string hca = report.hca + (report.software ? ", a software HCA" : "");
  print("steps on {}: {}\n", report.hca.empty() ? "no HCA" : hca,
        counts_text(count_verdicts(report.steps, verdict_of)));
}

OrderedJson environment_json(const doctor::Environment& environment) {
  OrderedJson variables = OrderedJson::object();
  for (const auto& [variable, value] : environment.variables) variables[variable] = value;
  OrderedJson files = OrderedJson::object();
  for (const auto& [path, text] : environment.files) files[path] = text ? OrderedJson(*text) : nullptr;
  OrderedJson functions = OrderedJson::array();
  for (const doctor::PciFunction& one : environment.functions) {
    OrderedJson config = nullptr;
    if (one.config)
      config = hex({reinterpret_cast<const std::uint8_t*>(one.config->data()), one.config->size()});
    functions.push_back({{"bus_id", one.bus_id}, {"iommu", one.iommu}, {"config", config}});
  }
  return {{"command_line", environment.command_line},
          {"variables", variables},
          {"libraries", environment.libraries},
          {"files", files},
          {"pci_functions", functions},
          {"kernel_log", environment.kernel_log},
          {"topology", topology_json(this_machine(), true)}};
}

OrderedJson bring_up_json(const doctor::BringUpReport& report, const OrderedJson& environment) {
  OrderedJson steps = OrderedJson::array();
  for (const StepReport& one : report.steps) steps.push_back(step_json(one));
  return {{"gdx_version", GDX_VERSION},
          {"commit", commit()},
          {"host", report.environment.host},
          {"started", report.environment.time},
          {"complete", report.is_complete()},
          {"running", report.running == 0 ? OrderedJson(nullptr) : OrderedJson(report.running)},
          {"verdict", doctor::name(report.worst())},
          {"counts", counts_json(count_verdicts(report.steps, verdict_of))},
          {"finding_counts", counts_json(count_verdicts(report.findings, verdict_of_finding))},
          {"hca", report.hca.empty() ? OrderedJson(nullptr) : OrderedJson(report.hca)},
          {"software_hca", report.software},
          {"environment", environment},
          {"steps", steps},
          {"findings", findings_json(report.findings)}};
}

}  // namespace gdx
