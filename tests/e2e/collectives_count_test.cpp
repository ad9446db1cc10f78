// Work requests and bytes of collective calls, by the counters of the software HCA, beside the algorithm's.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/e2e/collectives_of_ranks.h"

namespace gdx::collectives_test {

constexpr std::uint64_t kPiece = 2;  // requests: a put and its signal

// Requests and bytes that one rank sends in a call, of `count` elements of a piece.
struct Sends {
  const char* name;
  std::function<Status(const TeamHandle&, std::size_t count)> call;
  std::uint64_t requests;  // of pieces so short that one request has one
  double pieces;           // in bytes that are sent
};

class Counted : public Collectives {
 protected:
  // More than a packet, and more than the scratch of a direct all-reduce.
  static constexpr std::size_t kLong = 40'000;
  static constexpr int kTries = 4;

  Counted()
      : hca_(must(Hca::open())), x_(allocate<float>(size() * kLong)), y_(allocate<float>(size() * kLong)) {
    for (std::size_t rank = 0; rank < size(); ++rank) places_.push_back(rank * kLong);
  }
  [[nodiscard]] std::uint64_t size() const { return team_.size(); }

  // Returns the least by which a counter rises in some calls. Probes, and packets that are sent again because
  // a busy machine is late, raise it further.
  std::uint64_t least_of(const std::string& counter, const Sends& sends, std::size_t count) {
    std::uint64_t least = ~std::uint64_t{0};
    for (int i = 0; i < kTries; ++i) {
      must(team_.barrier());
      const std::uint64_t before = must(hca_.counter(counter));
      in_kernel<Scope::kThread>([&](const TeamHandle& team) {
        const Status status = sends.call(team, count);
        return status == Status::kOk ? gdx_quiet(team) : status;
      });
      must(team_.barrier());
      least = std::min(least, must(hca_.counter(counter)) - before);
    }
    return least;
  }

  // Returns calls from or to rank 0.
  std::vector<Sends> rooted_calls() {
    const std::uint64_t rank = team_.rank();
    const std::uint64_t others = size() - 1;
    // Children of a rank in the binomial tree: those at rank + 2^k, below its lowest bit and below the size.
    std::uint64_t children = 0;
    for (std::uint64_t far = 1; far < size() && (rank & far) == 0; far *= 2)
      children += rank + far < size() ? 1 : 0;
    const bool is_root = rank == 0;
    const double own = is_root ? 0 : 1;
    return {{"broadcast", [this](T t, std::size_t n) { return gdx_broadcast(t, y_, x_, n, 0); },
             (is_root ? 0 : 1) + children * kPiece, static_cast<double>(children)},
            {"gather", [this](T t, std::size_t n) { return gdx_gather(t, y_, x_, n, 0); },
             is_root ? others : kPiece, own},
            {"scatter", [this](T t, std::size_t n) { return gdx_scatter(t, y_, x_, n, 0); },
             is_root ? others * kPiece : 1, is_root ? static_cast<double>(others) : 0},
            {"reduce", [this](T t, std::size_t n) { return gdx_reduce<Reduce::kSum>(t, y_, x_, n, 0); },
             is_root ? others : kPiece, own}};
  }
  std::vector<Sends> calls_of_equals() {
    const std::uint64_t others = size() - 1;
    const auto pieces = static_cast<double>(others);
    const auto with_lengths = [this](T t, std::size_t n) {
      const std::vector<std::size_t> counts(size(), n);
      return gdx_all_to_all_v(t, y_, places_.data(), x_, places_.data(), counts.data());
    };
    return {{"barrier", [](T t, std::size_t) { return gdx_barrier(t); },
             static_cast<std::uint64_t>(std::bit_width(others)), 0},
            {"all_gather", [this](T t, std::size_t n) { return gdx_all_gather(t, y_, x_, n); },
             1 + others * kPiece, pieces},
            {"all_to_all", [this](T t, std::size_t n) { return gdx_all_to_all(t, y_, x_, n); },
             others * (1 + kPiece), pieces},
            {"all_to_all_v", with_lengths, others * (2 + kPiece), pieces},
            {"reduce_scatter",
             [this](T t, std::size_t n) { return gdx_reduce_scatter<Reduce::kSum>(t, y_, x_, n); },
             others * (1 + kPiece), pieces},
            {"all_reduce", [this](T t, std::size_t n) { return gdx_all_reduce<Reduce::kSum>(t, y_, x_, n); },
             others * (1 + kPiece), 2 * pieces / static_cast<double>(size())}};
  }
  void expect_sent(const std::vector<Sends>& calls) {
    if (size() == 1) GTEST_SKIP() << "a rank alone sends nothing";
    constexpr double kPieceBytes = kLong * sizeof(float);
    for (const Sends& sends : calls) {
      SCOPED_TRACE(sends.name);
      EXPECT_EQ(least_of("softhca_wqes", sends, 1), sends.requests);
      const auto bytes = static_cast<double>(least_of("softhca_bytes_sent", sends, kLong));
      EXPECT_GE(bytes, sends.pieces * kPieceBytes);
      // Headers, signals of chunks, and acknowledgements of what comes.
      const double come = 0.03 * static_cast<double>(size()) * kPieceBytes;
      EXPECT_LE(bytes, 1.1 * sends.pieces * kPieceBytes + come + 20'000);
    }
  }

  using T = const TeamHandle&;
  Hca hca_;
  float* x_;
  float* y_;
  std::vector<std::size_t> places_;
};
INSTANTIATE_TEST_SUITE_P(By, Counted, ::testing::Values(Ways::kNic), name_of);

TEST_P(Counted, rooted_calls_send_what_their_algorithms_do) { expect_sent(rooted_calls()); }
TEST_P(Counted, calls_of_equals_send_what_their_algorithms_do) { expect_sent(calls_of_equals()); }

// The HCA reads what it pulls; what is inline comes with the request.
TEST_P(Counted, pieces_go_by_the_mode_that_a_call_names) {
  if (size() == 1) GTEST_SKIP() << "a rank alone sends nothing";
  constexpr Scope kScope = Scope::kThread;
  constexpr Placement kPlacement = Placement::kHost;
  const auto of_mode = [&](auto mode) -> std::vector<Sends> {
    constexpr Mode kMode = decltype(mode)::value;
    const std::uint64_t others = size() - 1;
    const auto with_lengths = [this](T t, std::size_t n) {
      const std::vector<std::size_t> counts(size(), n);
      return gdx_all_to_all_v<kScope, kPlacement, kMode>(t, y_, places_.data(), x_, places_.data(),
                                                         counts.data());
    };
    const bool leads = team_.rank() == 0;
    return {{"all_gather",
             [this](T t, std::size_t n) { return gdx_all_gather<kScope, kPlacement, kMode>(t, y_, x_, n); },
             others, 0},
            {"all_to_all",
             [this](T t, std::size_t n) { return gdx_all_to_all<kScope, kPlacement, kMode>(t, y_, x_, n); },
             others, 0},
            {"all_to_all_v", with_lengths, others, 0},
            {"gather",
             [this](T t, std::size_t n) { return gdx_gather<kScope, kPlacement, kMode>(t, y_, x_, n, 0); },
             leads ? 0 : 1u, 0},
            {"scatter",
             [this](T t, std::size_t n) { return gdx_scatter<kScope, kPlacement, kMode>(t, y_, x_, n, 0); },
             leads ? others : 0, 0},
            {"reduce",
             [this](T t, std::size_t n) {
               return gdx_reduce<Reduce::kSum, kScope, kPlacement, kMode>(t, y_, x_, n, 0);
             },
             leads ? 0 : 1u, 0},
            {"all_reduce",
             [this](T t, std::size_t n) {
               return gdx_all_reduce<Reduce::kSum, kScope, kPlacement, kMode>(t, y_, x_, n);
             },
             others, 0}};
  };
  for (const Sends& sends : of_mode(std::integral_constant<Mode, Mode::kInline>{}))
    EXPECT_EQ(least_of("softhca_pcie_payload_reads", sends, 1), 0u) << sends.name;
  for (const Sends& sends : of_mode(std::integral_constant<Mode, Mode::kPull>{}))
    EXPECT_EQ(least_of("softhca_pcie_payload_reads", sends, 1), sends.requests) << sends.name;
}

}  // namespace gdx::collectives_test
