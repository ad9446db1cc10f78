#include "driver-shim/pcie/model/plot.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>

namespace gdx::pcie {
namespace {

// Quotes text for gnuplot, whose single quotes have one escape: the doubled quote.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("''") : std::string(1, c);
  return out + "'";
}

std::string data_blocks(const Report& report, const std::set<Mode>& modes) {
  std::string script;
  for (const Mode mode : modes) {
    script += fmt::format("$m{} << EOD\n", static_cast<int>(mode));
    for (const Row& row : report.rows) {
      if (row.mode != mode) continue;
      script += fmt::format("{} {} {}\n", row.size_bytes, row.latency.delivered_ns / 1000,
                            row.rate ? fmt::format("{}", row.rate->bytes_per_s * 8 / 1e9) : "NaN");
    }
    script += "EOD\n";
  }
  return script;
}

std::string curves(const std::set<Mode>& modes, int column) {
  std::string text = "plot ";
  for (const Mode mode : modes) {
    text += fmt::format("{}$m{} using 1:{} with linespoints lw 2 pt 7 ps 0.4 title '{}{}'",
                        mode == *modes.begin() ? "" : ", ", static_cast<int>(mode), column, name(mode),
                        is_proposal(mode) ? " (proposed)" : "");
  }
  return text + "\n";
}

}  // namespace

Result<void> check_plot(const std::vector<std::uint64_t>& sizes_bytes, const std::string& file) {
  if (!file.ends_with(".svg") && !file.ends_with(".png")) {
    return fail(Status::kInvalidArgument,
                fmt::format("--plot: '{}': give the name of a file that ends in .svg or .png", file));
  }
  if (std::set<std::uint64_t>(sizes_bytes.begin(), sizes_bytes.end()).size() < 2) {
    return fail(Status::kInvalidArgument,
                "--plot: one size is no curve: give --size-bytes more of them, or leave it out");
  }
  if (!std::ofstream(file, std::ios::app)) {
    return fail(Status::kInvalidArgument,
                fmt::format("--plot: '{}': cannot be written ({}); choose another place", file,
                            std::strerror(errno)));
  }
  if (std::system("command -v gnuplot >/dev/null") != 0)
    return fail(Status::kNotFound, "no plot: gnuplot is missing; install Debian's gnuplot-nox");
  return {};
}

Result<void> plot(const Report& report, const std::string& file) {
  std::set<Mode> modes;
  for (const Row& row : report.rows) modes.insert(row.mode);
  const bool png = file.ends_with(".png");
  std::string script = data_blocks(report, modes);
  script += fmt::format("set terminal {} size 1100,480 font 'sans,11'\nset output {}\n",
                        png ? "pngcairo" : "svg background '#ffffff'", quoted(file));
  script += fmt::format("set multiplot layout 1,2 title {} noenhanced\n", quoted(heading(report.world)));
  script += "set logscale x 2\nset format x '%.0b%BB'\nset xlabel 'message'\nset grid\nset key left top\n";
  script += "set logscale y 10\nset ylabel 'delivered after [us]'\n" + curves(modes, 2);
  script += "unset logscale y\nset ylabel 'rate [Gb/s]'\nset yrange [0:*]\n" + curves(modes, 3);
  FILE* gnuplot = popen("exec gnuplot >/dev/null 2>&1", "w");
  if (gnuplot == nullptr) return fail(Status::kSystem, "no plot: gnuplot cannot be started; raise ulimit -u");
  std::fwrite(script.data(), 1, script.size(), gnuplot);
  if (pclose(gnuplot) != 0)
    return fail(Status::kSystem,
                fmt::format("no plot: gnuplot could not write {}; choose another place", file));
  return {};
}

}  // namespace gdx::pcie
