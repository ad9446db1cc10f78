#include "host/queue/queue_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/holes.h"
#include "base/page_size.h"
#include "host/memory/shared_file.h"
#include "proto/mlx5/doorbell.h"

namespace gdx {
namespace {

std::size_t round_to_page(std::size_t bytes) {
  return (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
}

std::size_t held_bytes(std::uint32_t slot_count) {
  return round_to_page(std::size_t{slot_count} * sizeof(HeldSlot));
}

// Value of every byte of an unwritten entry: opcode invalid, and not the owner bit of the first pass. So a
// check of either one rejects the entry.
constexpr std::uint8_t kUnwrittenCqe =
    static_cast<std::uint8_t>(static_cast<unsigned>(mlx5::CqeOpcode::kInvalid) << mlx5::kCqeOpcodeShift) |
    mlx5::kCqeOwnerMask;

}  // namespace

std::size_t QueueMemory::lay_out(std::uint32_t send_queue_blocks, std::uint32_t slot_count,
                                 std::uint32_t bounce_slot_count) {
  const std::size_t ring_bytes = round_to_page(std::size_t{send_queue_blocks} * mlx5::kWqeBasicBlockBytes);
  completion_queue_offset_ = ring_bytes;
  control_offset_ = 2 * ring_bytes;
  held_offset_ = control_offset_ + page_bytes();
  return held_offset_ + held_bytes(slot_count) + held_bytes(bounce_slot_count);
}

Result<void> QueueMemory::clear_queue(std::size_t queue_bytes) {
  const std::size_t ring_bytes = completion_queue_offset_;
  const auto clear = [=](std::byte* queue) {
    std::memset(queue, 0, queue_bytes);
    std::memset(queue + ring_bytes, kUnwrittenCqe, ring_bytes);
  };
  if (gpu_memory_) {
    std::vector<std::byte> image(queue_bytes);
    clear(image.data());
    return gpu_memory_->write(0, image);
  }
  clear(queue_);
  new (control()) ControlPage{};
  return {};
}

std::size_t QueueMemory::host_part_bytes(std::uint32_t slot_count, std::uint32_t bounce_slot_count) {
  return page_bytes() + CreditArea::bytes(slot_count) + CreditArea::bytes(bounce_slot_count);
}

// The host's part begins at `host_page`.
void QueueMemory::place_credits(std::uint32_t slot_count, std::uint32_t bounce_slot_count) {
  std::byte* const credits = host_page_ + page_bytes();
  // Held slots lie with the queue, which may be in GPU memory, because kernels alone use them.
  const auto held = [this](std::size_t offset) {
    return queue_ == nullptr ? nullptr : reinterpret_cast<HeldSlot*>(queue_ + held_offset_ + offset);
  };
  staging_credits_ = CreditArea(credits, held(0), slot_count);
  bounce_credits_ =
      CreditArea(credits + CreditArea::bytes(slot_count), held(held_bytes(slot_count)), bounce_slot_count);
}

Result<void> QueueMemory::move_kernel_words(const Gpu& gpu) {
  const std::span<const std::byte> words(queue_ + control_offset_, host_page_);
  auto moved = GDX_TRY(GpuMemory::allocate(gpu, words.size(), GpuUse::kPrivate));
  GDX_TRY(moved.write(0, words));
  std::byte* const held = moved.address() + (held_offset_ - control_offset_);
  const std::size_t staging_bytes = held_bytes(staging_credits_.slot_count());
  staging_credits_.move_held(reinterpret_cast<HeldSlot*>(held));
  bounce_credits_.move_held(reinterpret_cast<HeldSlot*>(held + staging_bytes));
  kernel_words_ = std::move(moved);
  std::atomic_ref(host().words_moved).store(1, std::memory_order_release);
  return {};
}

// Places the parts in the pages, which are there, and gives every word its first value.
Result<void> QueueMemory::fill(std::size_t queue_bytes, std::uint32_t slot_count,
                               std::uint32_t bounce_slot_count, const Gpu* gpu) {
  host_page_ = pages_.get() + (host_bytes_ - host_part_bytes(slot_count, bounce_slot_count));
  queue_ = pages_.get();
  if (gpu != nullptr) {
    gpu_memory_ = GDX_TRY(GpuMemory::allocate(*gpu, queue_bytes, GpuUse::kPrivate));
    queue_ = gpu_memory_->address();
  }
  GDX_TRY(clear_queue(queue_bytes));
  new (host_page_) HostPage{};
  place_credits(slot_count, bounce_slot_count);
  return {};
}

Result<QueueMemory> QueueMemory::allocate(std::uint32_t send_queue_blocks, std::uint32_t slot_count,
                                          std::uint32_t bounce_slot_count, const Gpu* gpu) {
  QueueMemory memory;
  const std::size_t queue_bytes = memory.lay_out(send_queue_blocks, slot_count, bounce_slot_count);
  memory.host_bytes_ = host_part_bytes(slot_count, bounce_slot_count) + (gpu == nullptr ? queue_bytes : 0);
  memory.pages_ = GDX_TRY(map_own_pages(memory.host_bytes_));
  GDX_TRY(memory.fill(queue_bytes, slot_count, bounce_slot_count, gpu));
  return memory;
}

Result<QueueMemory> QueueMemory::allocate_in_file(std::uint32_t send_queue_blocks, std::uint32_t slot_count,
                                                  std::uint32_t bounce_slot_count, const Gpu* gpu) {
  QueueMemory memory;
  const std::size_t queue_bytes = memory.lay_out(send_queue_blocks, slot_count, bounce_slot_count);
  memory.host_bytes_ = host_part_bytes(slot_count, bounce_slot_count) + (gpu == nullptr ? queue_bytes : 0);
  auto shared = GDX_TRY(make_shared_file(memory.host_bytes_));
  memory.pages_ = std::move(shared.pages);
  memory.file_ = std::move(shared.file);
  GDX_TRY(memory.fill(queue_bytes, slot_count, bounce_slot_count, gpu));
  return memory;
}

Result<QueueMemory> QueueMemory::adopt(MappedPages pages, std::uint32_t send_queue_blocks,
                                       std::uint32_t slot_count, std::uint32_t bounce_slot_count,
                                       std::optional<SharedRegion> queue) {
  QueueMemory memory;
  const std::size_t queue_bytes = memory.lay_out(send_queue_blocks, slot_count, bounce_slot_count);
  memory.host_bytes_ = host_part_bytes(slot_count, bounce_slot_count) + (queue ? 0 : queue_bytes);
  if (memory.host_bytes_ != pages.get_deleter().length_bytes) {
    return fail(Status::kInvalidArgument, fmt::format("an endpoint's queues need {} bytes, and {} came",
                                                      memory.host_bytes_, pages.get_deleter().length_bytes));
  }
  memory.adopted_ = true;
  memory.pages_ = std::move(pages);
  memory.queue_ = queue ? nullptr : memory.pages_.get();
  memory.queue_dmabuf_ = std::move(queue);
  memory.host_page_ = memory.pages_.get() + (memory.queue_dmabuf_ ? 0 : queue_bytes);
  memory.place_credits(slot_count, bounce_slot_count);
  return memory;
}

std::size_t QueueMemory::queue_pair_record_offset() const {
  return control_offset_ + offsetof(ControlPage, queue_pair_record);
}
std::size_t QueueMemory::completion_record_offset() const {
  return control_offset_ + offsetof(ControlPage, completion_record);
}

mlx5::WqeBasicBlock* QueueMemory::send_queue() const {
  return reinterpret_cast<mlx5::WqeBasicBlock*>(queue_);
}
mlx5::Cqe64* QueueMemory::completion_queue() const {
  return reinterpret_cast<mlx5::Cqe64*>(queue_ + completion_queue_offset_);
}
ControlPage* QueueMemory::control() const { return reinterpret_cast<ControlPage*>(queue_ + control_offset_); }
QueueState* QueueMemory::state() const {
  std::byte* const page = kernel_words_ ? kernel_words_->address() : queue_ + control_offset_;
  return reinterpret_cast<QueueState*>(page + offsetof(ControlPage, state));
}
HostPage& QueueMemory::host() const { return *reinterpret_cast<HostPage*>(host_page_); }

Result<void> QueueMemory::read(std::size_t offset, std::span<std::byte> to) const {
  if (gpu_memory_) return gpu_memory_->read(offset, to);
  if (queue_ == nullptr)
    return fail(Status::kUnsupported, "the queue is in GPU memory of another process: ask there");
  std::memcpy(to.data(), queue_ + offset, to.size());
  return {};
}

// Another process may have punched its rings out of its file.
Result<void> QueueMemory::read_ring(std::size_t offset, std::span<std::byte> to) const {
  if (!adopted_ || queue_ == nullptr) return read(offset, to);
  if (copy_present(to.data(), queue_ + offset, to.size())) return {};
  return fail(Status::kUnsupported,
              fmt::format("the rings of another process's queue cannot be read: {}", std::strerror(errno)));
}

bool QueueMemory::words_moved() const {
  return std::atomic_ref(host().words_moved).load(std::memory_order_acquire) != 0;
}
bool QueueMemory::has_kernel_words() const { return queue_ != nullptr && !gpu_memory_ && !words_moved(); }

Result<QueueState> QueueMemory::load_state() const {
  QueueState state{};
  if (!kernel_words_ && words_moved())
    return fail(Status::kUnsupported, "the counters are in GPU memory of another process: ask there");
  const auto to = std::as_writable_bytes(std::span(&state, 1));
  GDX_TRY(kernel_words_ ? kernel_words_->read(offsetof(ControlPage, state), to)
                        : read(control_offset_ + offsetof(ControlPage, state), to));
  return state;
}

Result<mlx5::WqeBasicBlock> QueueMemory::load_block(std::uint32_t index) const {
  mlx5::WqeBasicBlock block{};
  GDX_TRY(read(index * sizeof block, block.bytes));
  return block;
}

// Copies `count` entries from cumulative index `first` on, in two pieces if they pass the ring's end.
template <typename Entry>
Result<std::vector<Entry>> QueueMemory::load_ring(std::size_t offset, std::uint32_t entries,
                                                  std::uint32_t first, std::uint32_t count) const {
  std::vector<Entry> copy(count);
  const std::uint32_t begin = first & (entries - 1);
  const std::uint32_t before_wrap = std::min(count, entries - begin);
  const auto to = std::as_writable_bytes(std::span(copy));
  GDX_TRY(read_ring(offset + begin * sizeof(Entry), to.first(before_wrap * sizeof(Entry))));
  if (before_wrap != count) GDX_TRY(read_ring(offset, to.subspan(before_wrap * sizeof(Entry))));
  return copy;
}

Result<std::vector<mlx5::WqeBasicBlock>> QueueMemory::load_blocks(std::uint32_t entries, std::uint32_t first,
                                                                  std::uint32_t count) const {
  return load_ring<mlx5::WqeBasicBlock>(0, entries, first, count);
}

Result<std::vector<mlx5::Cqe64>> QueueMemory::load_completions(std::uint32_t entries, std::uint32_t first,
                                                               std::uint32_t count) const {
  return load_ring<mlx5::Cqe64>(completion_queue_offset_, entries, first, count);
}

Result<std::uint16_t> QueueMemory::load_send_record() const {
  Be32 record{};
  GDX_TRY(read(queue_pair_record_offset() + mlx5::kSendRecord * sizeof record,
               std::as_writable_bytes(std::span(&record, 1))));
  return static_cast<std::uint16_t>(std::uint32_t{record});
}

Result<QueueMemory::SharedProgress> QueueMemory::load_shared_progress() const {
  if (!has_kernel_words()) {
    const auto shared = GDX_TRY(load_state()).shared;
    return SharedProgress{shared.published, shared.completed};
  }
  SharedState& shared = state()->shared;
  return SharedProgress{std::atomic_ref(shared.published).load(std::memory_order_acquire),
                        std::atomic_ref(shared.completed).load(std::memory_order_acquire)};
}

Result<std::uint8_t> QueueMemory::load_op_own(std::uint32_t entries, std::uint32_t index) const {
  if (gpu_memory_ || queue_ == nullptr) return GDX_TRY(load_completions(entries, index, 1)).front().op_own;
  return std::atomic_ref(completion_queue()[index & (entries - 1)].op_own).load(std::memory_order_acquire);
}

Result<void> QueueMemory::store_state(const QueueState& state) {
  const auto from = std::as_bytes(std::span(&state, 1));
  if (kernel_words_) return kernel_words_->write(offsetof(ControlPage, state), from);
  if (gpu_memory_) return gpu_memory_->write(control_offset_ + offsetof(ControlPage, state), from);
  control()->state = state;
  return {};
}

std::size_t CreditArea::bytes(std::uint32_t slot_count) {
  if (slot_count == 0) return 0;
  return round_to_page(sizeof(CreditWords) + std::size_t{slot_count} * 2 * sizeof(std::uint32_t));
}

CreditArea::CreditArea(std::byte* base, HeldSlot* held, std::uint32_t slot_count)
    : base_(base), held_(held), slot_count_(slot_count) {
  if (slot_count != 0) new (base) CreditWords{};
}

CreditWords& CreditArea::words() const { return *reinterpret_cast<CreditWords*>(base_); }
std::uint32_t* CreditArea::granted_slots() const {
  return reinterpret_cast<std::uint32_t*>(base_ + sizeof(CreditWords));
}
std::uint32_t* CreditArea::returned_slots() const { return granted_slots() + slot_count_; }

CreditChannel CreditArea::channel() const {
  return {&words().grants, granted_slots(), &words().requests, returned_slots()};
}

void CreditArea::describe(StagingHandle& staging) const {
  if (slot_count_ == 0) return;
  staging.grants = &words().grants;
  staging.granted_slots = granted_slots();
  staging.requests = &words().requests;
  staging.returned_slots = returned_slots();
  staging.held = held_;
}

}  // namespace gdx
