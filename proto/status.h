// The one status vocabulary of gdx, shared by kernels and host code.
#pragma once

#include <cstdint>

namespace gdx {

// Apart from its enumerators, with which clang-format 14 takes the attribute for a class's.
enum class [[nodiscard]] Status : std::uint32_t;

// Groups by the part that failed, in the high byte, because the caller needs the parts that are still usable:
//  - 0x00 none: success, or a state that is no error
//  - 0x01 the operation: the queue is intact. Work posted before continues: a timed-out flush, or the chunks
//    of a message.
//  - 0x02 the queue: it is in error and posts nothing more; make another endpoint
//  - 0x03 the peer: the queue is in error, because the remote side refused or cannot be reached
//  - 0x04 the process or its HCA: no operation can continue
enum class Status : std::uint32_t {
  kOk = 0x0000,
  kPending = 0x0001,

  kInvalidArgument = 0x0101,
  kInvalidLength = 0x0102,
  kTimeout = 0x0103,
  kAborted = 0x0104,          // by Endpoint::abort()
  kNotFound = 0x0105,         // no HCA, counter, file or program of that name
  kBusy = 0x0106,             // in use: a port, all slots of a pool, an endpoint that a kernel has open
  kUnsupported = 0x0107,      // this endpoint, HCA or build cannot do it at all
  kVersionMismatch = 0x0108,  // two parties were built with different layouts
  kNotConnected = 0x0109,     // an endpoint without a peer: not connected yet, or destroyed

  // Completion syndromes: the next three, and 0x0301 to 0x0305. mlx5::status_of in proto/mlx5/cqe.h maps
  // them.
  kQueueError = 0x0201,       // any syndrome without a status of its own
  kLocalProtection = 0x0202,  // a local key does not permit the access, or has no such range
  kFlushed = 0x0203,          // the queue was in error before this work request began

  kPeerUnreachable = 0x0301,
  kPeerNotReady = 0x0302,
  kRemoteAccess = 0x0303,
  kRemoteInvalid = 0x0304,
  kRemoteOperation = 0x0305,
  kPeerGone = 0x0306,  // its bootstrap connection closed

  kNoDevice = 0x0401,
  kNoMemory = 0x0402,
  kSystem = 0x0403,
  kDaemonGone = 0x0404,  // gdxd, through which this process reached its HCA, has ended
  kHcaFailed = 0x0405,   // the HCA is in a fatal error, and its objects are lost
};

// Returns a short English phrase for messages; never null. Threads: any.
constexpr const char* status_name(Status status) {
  switch (status) {
    case Status::kOk: return "ok";
    case Status::kPending: return "pending";
    case Status::kInvalidArgument: return "invalid argument";
    case Status::kInvalidLength: return "invalid length";
    case Status::kTimeout: return "timed out";
    case Status::kAborted: return "aborted by the host";
    case Status::kNotFound: return "not found";
    case Status::kBusy: return "busy";
    case Status::kUnsupported: return "unsupported";
    case Status::kVersionMismatch: return "layout version mismatch";
    case Status::kNotConnected: return "not connected";
    case Status::kQueueError: return "queue error";
    case Status::kLocalProtection: return "local protection error";
    case Status::kFlushed: return "flushed";
    case Status::kPeerUnreachable: return "peer unreachable (transport retries exceeded)";
    case Status::kPeerNotReady: return "peer not ready (RNR retries exceeded)";
    case Status::kRemoteAccess: return "remote access error";
    case Status::kRemoteInvalid: return "remote invalid request";
    case Status::kRemoteOperation: return "remote operation error";
    case Status::kPeerGone: return "peer gone";
    case Status::kNoDevice: return "no device";
    case Status::kNoMemory: return "out of memory";
    case Status::kSystem: return "system error";
    case Status::kDaemonGone: return "gdxd is gone";
    case Status::kHcaFailed: return "HCA failed";
  }
  return "unknown status";
}

}  // namespace gdx
