// A 5-point stencil on a grid of ranks, against a serial one: gdx run --ranks 6 -- halo_exchange [STEPS]
#include "halo_exchange.h"

#include <vector>

#include "../example.h"

using gdx::program::or_exit;

namespace {

float first_value(std::uint32_t x, std::uint32_t y) { return static_cast<float>((x * 31 + y * 17) % 101); }

// Returns the whole field after `steps`, with an edge of zeros.
std::vector<float> serial(std::uint32_t width, std::uint32_t height, std::uint32_t steps) {
  const std::uint32_t stride = width + 2;
  std::vector<float> field(stride * (height + 2));
  const auto each_cell = [&](const auto& work) {
    for (std::uint32_t i = 0; i < width * height; ++i)
      work(i % width, i / width, (i / width + 1) * stride + i % width + 1);
  };
  each_cell([&](std::uint32_t x, std::uint32_t y, std::uint32_t at) { field[at] = first_value(x, y); });
  std::vector<float> next = field;
  for (std::uint32_t step = 0; step < steps; ++step, field.swap(next))
    each_cell([&](std::uint32_t, std::uint32_t, std::uint32_t at) {
      next[at] = next_value(field.data(), at, stride);
    });
  return field;
}

}  // namespace

int main(int argc, char** argv) {
  const std::uint32_t steps = example::number(argc, argv, 1, 21);
  gdx::Team team = or_exit(gdx::Team::create());
  const auto floats = [&](std::uint32_t count) { return or_exit(team.allocate<float>(2 * count)); };
  Halo halo{floats(kCells),
            floats(kSides * kWidth),
            floats(kSides * kWidth),
            or_exit(team.allocate<std::uint64_t>(kSides)),
            or_exit(team.allocate<gdx::Status>(kSides)),
            {}};
  std::uint32_t rows = 1;  // of ranks, as near to a square as can be
  for (std::uint32_t r = 2; r * r <= team.size(); ++r) rows = team.size() % r == 0 ? r : rows;
  const std::uint32_t columns = team.size() / rows;
  const std::uint32_t row = team.rank() / columns;
  const std::uint32_t column = team.rank() % columns;
  halo.neighbours[0] = row > 0 ? team.rank() - columns : kNobody;
  halo.neighbours[1] = row + 1 < rows ? team.rank() + columns : kNobody;
  halo.neighbours[2] = column > 0 ? team.rank() - 1 : kNobody;
  halo.neighbours[3] = column + 1 < columns ? team.rank() + 1 : kNobody;
  const auto cell = [&](std::uint32_t i) { return (i / kWidth + 1) * kStride + i % kWidth + 1; };
  for (std::uint32_t i = 0; i < kWidth * kHeight; ++i)
    halo.cells[cell(i)] = first_value(column * kWidth + i % kWidth, row * kHeight + i / kWidth);

  example::check(team, run_steps(team.handle(), halo, steps), halo.status, kSides);
  const std::vector<float> wanted = serial(columns * kWidth, rows * kHeight, steps);
  for (std::uint32_t i = 0; i < kWidth * kHeight; ++i) {
    const float right =
        wanted[(row * kHeight + i / kWidth + 1) * (columns * kWidth + 2) + column * kWidth + i % kWidth + 1];
    example::expect_equal(team, "cell", i, halo.cells[steps % 2 * kCells + cell(i)], right);
  }
  if (team.rank() == 0) std::printf("%u x %u ranks: %u steps are right\n", columns, rows, steps);
}
