#include "host/poster/verbs_connection.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstddef>
#include <utility>

namespace gdx::verbs {
namespace {

// Frames that return credits and hold none themselves. Each returns half of a rank's, and the first is empty:
// no more than three can be unread.
constexpr std::uint32_t kCreditFrames = 4;
constexpr int kCompletionsAtOnce = 32;

// Meaning of a work request's id: the low bits of a context's address are zero.
enum : std::uint64_t { kOfContext = 0, kOfReceive = 1, kOfFrame = 2, kKindMask = 3 };
constexpr std::uint32_t kKindBits = 2;
static_assert(alignof(PortContext) > kKindMask);

constexpr std::uint64_t kNoBuffer = ~std::uint64_t{0};

// The buffer of a message in flight is kept in its context.
void keep_buffer(PortContext* context, std::uint64_t buffer) {
  std::memcpy(context->reserved, &buffer, sizeof buffer);
}
std::uint64_t kept_buffer(const PortContext* context) {
  std::uint64_t buffer = 0;
  std::memcpy(&buffer, context->reserved, sizeof buffer);
  return buffer;
}

Status status_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR: return Status::kLocalProtection;
    case IBV_WC_REM_INV_REQ_ERR: return Status::kRemoteInvalid;
    case IBV_WC_REM_ACCESS_ERR: return Status::kRemoteAccess;
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR: return Status::kRemoteOperation;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_WR_FLUSH_ERR: return Status::kPeerUnreachable;
    case IBV_WC_RNR_RETRY_EXC_ERR: return Status::kPeerNotReady;
    default: return Status::kQueueError;
  }
}

// Names the first failure of a connection. Where that is a flush, nothing failed here before.
Error error_of(const ibv_wc& completion) {
  const bool flushed = completion.status == IBV_WC_WR_FLUSH_ERR;
  return {status_of(completion.status),
          fmt::format("{} (provider ibverbs: status {}, vendor's error {:#x})",
                      flushed ? "the rank has ended the connection" : ibv_wc_status_str(completion.status),
                      static_cast<int>(completion.status), completion.vendor_err)};
}

}  // namespace

Result<std::unique_ptr<Connection>> Connection::open(Id id, ibv_pd* domain, const Bounds& bounds,
                                                     std::uint8_t ack_timeout) {
  std::unique_ptr<Connection> connection(new Connection(std::move(id), bounds));
  GDX_TRY(connection->make(domain, ack_timeout));
  return connection;
}

Result<void> Connection::make(ibv_pd* domain, std::uint8_t ack_timeout) {
  const std::uint32_t receives = bounds_.messages + kCreditFrames;
  const std::uint32_t sends = bounds_.operations + kCreditFrames;
  completions_.reset(ibv_create_cq(id_->verbs, static_cast<int>(receives + sends), nullptr, nullptr, 0));
  if (!completions_) return tl::unexpected(error_of("ibv_create_cq", errno));
  buffers_.resize(std::size_t{2} * receives);
  constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE;  // as a number, for clang: the call is a macro
  region_.reset(ibv_reg_mr(domain, buffers_.data(), buffers_.size() * sizeof(Buffer), kAccess));
  if (!region_) return tl::unexpected(error_of("ibv_reg_mr of messages", errno));
  // Of kernels before 5.8, which do not know it, the time is theirs.
  (void)library().set_option(id_.get(), RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack_timeout,
                             sizeof ack_timeout);
  ibv_qp_init_attr attributes{};
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 1;
  attributes.send_cq = attributes.recv_cq = completions_.get();
  attributes.cap = {.max_send_wr = sends,
                    .max_recv_wr = receives,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = 0};
  if (library().create_qp(id_.get(), domain, &attributes) != 0)
    return tl::unexpected(error_of("rdma_create_qp", errno));
  for (std::uint32_t buffer = 0; buffer < receives; ++buffer) {
    GDX_TRY(post_receive(buffer));
    free_.push_back(receives + buffer);
  }
  return {};
}

Connection::~Connection() {
  if (id_->qp == nullptr) return;
  (void)library().disconnect(id_.get());
  library().destroy_qp(id_.get());
}

Result<void> Connection::connect(rdma_conn_param& parameters) {
  if (library().connect(id_.get(), &parameters) != 0) return tl::unexpected(error_of("rdma_connect", errno));
  return {};
}

Result<void> Connection::accept(rdma_conn_param& parameters) {
  if (library().accept(id_.get(), &parameters) != 0) return tl::unexpected(error_of("rdma_accept", errno));
  return {};
}

void Connection::open_as_caller() {
  open_ = true;
  const std::uint32_t buffer = free_.back();
  free_.pop_back();
  if (const auto posted = post_frame(buffer, nullptr); !posted) fail_with(posted.error());
}

Result<void> Connection::post_receive(std::uint32_t buffer) {
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(&buffers_[buffer]), sizeof(Buffer), region_->lkey};
  ibv_recv_wr request{};
  request.wr_id = std::uint64_t{buffer} << kKindBits | kOfReceive;
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  const int error = ibv_post_recv(id_->qp, &request, &bad);
  if (error != 0) return tl::unexpected(error_of("ibv_post_recv", error));
  return {};
}

Result<void> Connection::post(ibv_send_wr& request, const char* what) {
  ibv_send_wr* bad = nullptr;
  const int error = ibv_post_send(id_->qp, &request, &bad);
  if (error != 0) return tl::unexpected(error_of(fmt::format("ibv_post_send of a {}", what), error));
  ++in_flight_;
  return {};
}

Result<Posting> Connection::transfer(ibv_wr_opcode opcode, PortSource local, PortTarget remote,
                                     std::uint64_t bytes, PortContext* context) {
  if (failure_.status != Status::kOk) return tl::unexpected(failure_);
  if (!open_ || in_flight_ >= bounds_.operations) return Posting::kAgain;
  keep_buffer(context, kNoBuffer);
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(local.address), static_cast<std::uint32_t>(bytes),
                static_cast<const ibv_mr*>(local.region)->lkey};
  ibv_send_wr request{};
  request.wr_id = reinterpret_cast<std::uintptr_t>(context);
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = opcode;
  request.wr.rdma.remote_addr = remote.address;
  request.wr.rdma.rkey = static_cast<std::uint32_t>(remote.key);
  GDX_TRY(post(request, opcode == IBV_WR_RDMA_READ ? "READ" : "WRITE"));
  return Posting::kPosted;
}

Result<Posting> Connection::send(const std::byte* message, PortContext* context) {
  if (failure_.status != Status::kOk) return tl::unexpected(failure_);
  const bool room = in_flight_ < bounds_.operations && free_.size() > kCreditFrames;
  if (!open_ || credits_ == 0 || !room) return Posting::kAgain;
  const std::uint32_t buffer = free_.back();
  std::memcpy(buffers_[buffer].message.data(), message, kPortMessageBytes);
  keep_buffer(context, buffer);
  GDX_TRY(post_frame(buffer, context));
  free_.pop_back();
  --credits_;
  return Posting::kPosted;
}

Result<void> Connection::post_frame(std::uint32_t buffer, PortContext* context) {
  buffers_[buffer].frame = {.credits = owed_, .reserved = 0};
  const std::uint32_t bytes = context == nullptr ? sizeof(Frame) : sizeof(Buffer);
  ibv_sge piece{reinterpret_cast<std::uintptr_t>(&buffers_[buffer]), bytes, region_->lkey};
  ibv_send_wr request{};
  request.wr_id = context != nullptr ? reinterpret_cast<std::uintptr_t>(context)
                                     : std::uint64_t{buffer} << kKindBits | kOfFrame;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  GDX_TRY(post(request, "SEND"));
  owed_ = 0;
  return {};
}

// Returns half of all at a time, unless messages bring them before. Without room it waits for the next poll.
void Connection::return_credits() {
  const bool room = in_flight_ < bounds_.operations + kCreditFrames && !free_.empty();
  if (!open_ || failure_.status != Status::kOk || owed_ < bounds_.messages / 2 || !room) return;
  const std::uint32_t buffer = free_.back();
  free_.pop_back();
  if (const auto posted = post_frame(buffer, nullptr); !posted) fail_with(posted.error());
}

Result<void> Connection::poll(std::vector<PortEvent>& events) {
  std::array<ibv_wc, kCompletionsAtOnce> completions{};
  const int count = ibv_poll_cq(completions_.get(), kCompletionsAtOnce, completions.data());
  if (count < 0) return tl::unexpected(error_of("ibv_poll_cq", errno));
  for (int i = 0; i < count; ++i) take(completions[static_cast<std::size_t>(i)], events);
  return_credits();
  return {};
}

void Connection::take(const ibv_wc& completion, std::vector<PortEvent>& events) {
  // The event of a connection that was refused tells more than the receives that it takes along.
  const bool is_refused = !open_ && completion.status == IBV_WC_WR_FLUSH_ERR;
  if (completion.status != IBV_WC_SUCCESS && !is_refused) fail_with(error_of(completion));
  const std::uint64_t kind = completion.wr_id & kKindMask;
  if (kind == kOfReceive) return take_received(completion, events);
  --in_flight_;
  if (kind == kOfFrame) return free_.push_back(static_cast<std::uint32_t>(completion.wr_id >> kKindBits));
  PortEvent& event = events.emplace_back();
  event.context = reinterpret_cast<PortContext*>(completion.wr_id);
  const std::uint64_t buffer = kept_buffer(event.context);
  if (buffer != kNoBuffer) free_.push_back(static_cast<std::uint32_t>(buffer));
  if (completion.status == IBV_WC_SUCCESS) return;
  event.kind = PortEvent::Kind::kFailed;
  event.error = failure_;
}

void Connection::take_received(const ibv_wc& completion, std::vector<PortEvent>& events) {
  if (completion.status != IBV_WC_SUCCESS) return;
  const auto number = static_cast<std::uint32_t>(completion.wr_id >> kKindBits);
  const Buffer& buffer = buffers_[number];
  open_ = true;
  credits_ += buffer.frame.credits;
  if (completion.byte_len == sizeof(Buffer)) {
    PortEvent& event = events.emplace_back();
    event.kind = PortEvent::Kind::kMessage;
    event.message = buffer.message;
    ++owed_;
  }
  if (failure_.status != Status::kOk) return;
  if (const auto posted = post_receive(number); !posted) fail_with(posted.error());
}

void Connection::fail_with(Error error) {
  if (failure_.status != Status::kOk) return;
  failure_ = std::move(error);
  // Completes what is in flight, where the queue pair is not in error yet.
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  (void)ibv_modify_qp(id_->qp, &attributes, IBV_QP_STATE);
  (void)library().disconnect(id_.get());
}

}  // namespace gdx::verbs
