// A rank of an MPI program, which mpi.sh builds: messages between all pairs, collectives and, where the
// argument one-sided is given, windows. It verifies all data, and by counters that gdx0 has carried the
// messages.
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <vector>

namespace {

using Words = std::vector<std::uint32_t>;

constexpr int kLargestWords = 1 << 18;               // 1 MiB
constexpr std::uint64_t kLargestPacketBytes = 4096;  // of payload

int rank = 0;
int ranks = 0;
std::uint64_t sent_bytes = 0;  // to other ranks, by messages

void require(bool holds, const char* what, long long detail) {
  if (holds) return;
  std::fprintf(stderr, "rank %d: %s (%lld)\n", rank, what, detail);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

std::uint64_t packets_sent() {
  std::ifstream file("/sys/class/infiniband/gdx0/ports/1/counters/port_xmit_packets");
  std::uint64_t packets = 0;
  require(static_cast<bool>(file >> packets), "the HCA's counters cannot be read", 0);
  return packets;
}

std::uint32_t word(int from, int to, int words, int index) {
  return static_cast<std::uint32_t>(from * 1'000'003 + to * 10'007 + words * 31 + index);
}

void require_words(const Words& got, int from, int to, int words, const char* what) {
  for (int i = 0; i < words; ++i) require(got[i] == word(from, to, words, i), what, i);
}

// From every rank to every other at once, received in any order.
void messages(int words) {
  std::vector<Words> sent(ranks);
  std::vector<MPI_Request> requests;
  for (int to = 0; to < ranks; ++to) {
    if (to == rank) continue;
    for (int i = 0; i < words; ++i) sent[to].push_back(word(rank, to, words, i));
    MPI_Isend(sent[to].data(), words, MPI_UINT32_T, to, words, MPI_COMM_WORLD, &requests.emplace_back());
    sent_bytes += 4ull * words;
  }
  for (int received = 1; received < ranks; ++received) {
    Words got(words);
    MPI_Status status;
    MPI_Recv(got.data(), words, MPI_UINT32_T, MPI_ANY_SOURCE, words, MPI_COMM_WORLD, &status);
    require_words(got, status.MPI_SOURCE, rank, words, "a message holds other data than was sent");
  }
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

void collectives(int words) {
  Words data(words);
  for (int i = 0; rank == ranks - 1 && i < words; ++i) data[i] = word(rank, 0, words, i);
  MPI_Bcast(data.data(), words, MPI_UINT32_T, ranks - 1, MPI_COMM_WORLD);
  require_words(data, ranks - 1, 0, words, "a broadcast holds other data than was sent");

  for (int i = 0; i < words; ++i) data[i] = static_cast<std::uint32_t>(rank + i);
  MPI_Allreduce(MPI_IN_PLACE, data.data(), words, MPI_UINT32_T, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < words; ++i) {
    const auto sum = static_cast<std::uint32_t>(ranks * i + ranks * (ranks - 1) / 2);
    require(data[i] == sum, "a reduction gives another sum", i);
  }

  Words out(static_cast<std::size_t>(words) * ranks);
  Words in(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = word(rank, static_cast<int>(i) / words, words, static_cast<int>(i) % words);
  }
  MPI_Alltoall(out.data(), words, MPI_UINT32_T, in.data(), words, MPI_UINT32_T, MPI_COMM_WORLD);
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::uint32_t expected =
        word(static_cast<int>(i) / words, rank, words, static_cast<int>(i) % words);
    require(in[i] == expected, "an all-to-all holds other data than was sent", static_cast<long long>(i));
  }
}

// Puts to the next rank, gets from the previous one what was put there, and draws tickets from rank 0.
void one_sided(int words) {
  Words memory(words + 1);
  MPI_Win window = MPI_WIN_NULL;
  MPI_Win_create(memory.data(), static_cast<MPI_Aint>(memory.size() * 4), 4, MPI_INFO_NULL, MPI_COMM_WORLD,
                 &window);
  const int next = (rank + 1) % ranks;
  Words data(words);
  for (int i = 0; i < words; ++i) data[i] = word(rank, next, words, i);
  MPI_Win_fence(0, window);
  MPI_Put(data.data(), words, MPI_UINT32_T, next, 1, words, MPI_UINT32_T, window);
  MPI_Win_fence(0, window);
  Words got(words);
  const int other = (rank + ranks - 1) % ranks;
  MPI_Get(got.data(), words, MPI_UINT32_T, other, 1, words, MPI_UINT32_T, window);
  MPI_Win_fence(0, window);
  require_words(got, (other + ranks - 1) % ranks, other, words, "a get brings other data than was put");

  constexpr int kTickets = 20;
  const std::uint32_t one = 1;
  std::uint32_t newest = 0;
  for (int i = 0; i < kTickets; ++i) {
    std::uint32_t ticket = 0;
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    MPI_Fetch_and_op(&one, &ticket, MPI_UINT32_T, 0, 0, MPI_SUM, window);
    MPI_Win_unlock(0, window);
    require(i == 0 || ticket > newest, "a ticket does not grow", ticket);
    newest = ticket;
  }
  MPI_Barrier(MPI_COMM_WORLD);
  std::uint32_t total = 0;
  MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
  MPI_Get(&total, 1, MPI_UINT32_T, 0, 0, 1, MPI_UINT32_T, window);
  MPI_Win_unlock(0, window);
  require(total == static_cast<std::uint32_t>(ranks * kTickets), "tickets are lost", total);
  MPI_Win_free(&window);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int words = 1; words <= kLargestWords; words *= 8) messages(words);
  const std::uint64_t packets = packets_sent();
  require(packets >= sent_bytes / kLargestPacketBytes,
          "the HCA has sent fewer packets than the messages need", static_cast<long long>(packets));
  collectives(3);
  collectives(1 << 14);
  if (argc > 1 && std::string_view(argv[1]) == "one-sided") one_sided(1 << 10);
  MPI_Barrier(MPI_COMM_WORLD);
  std::printf("rank %d of %d: all verified\n", rank, ranks);
  MPI_Finalize();
  return 0;
}
