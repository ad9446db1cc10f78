#include "tests/sim/seeds.h"

#include <charconv>

namespace gdx::sim {
namespace {

std::optional<std::uint64_t> parse_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

std::optional<SeedRange> parse_seeds(std::string_view text) {
  const std::size_t dots = text.find("..");
  const auto first = parse_number(text.substr(0, dots));
  const auto last = dots == std::string_view::npos ? first : parse_number(text.substr(dots + 2));
  // The largest number of all is kept free: counting must be able to go past the last seed.
  if (!first || !last || *first > *last || *last > ~std::uint64_t{0} / 2) return std::nullopt;
  return SeedRange{*first, *last};
}

std::optional<SeedArguments> parse_seed_arguments(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  SeedArguments arguments;
  arguments.hunts = !words.empty() && words.back() == "hunt";
  if (arguments.hunts) words.pop_back();
  if (words.size() != 2 && words.size() != 3) return std::nullopt;
  const auto seeds = parse_seeds(words[0] + ".." + words[1]);
  if (!seeds) return std::nullopt;
  arguments.seeds = *seeds;
  if (words.size() == 3) arguments.choice = words[2];
  return arguments;
}

}  // namespace gdx::sim
