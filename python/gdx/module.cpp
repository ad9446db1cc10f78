// The module gdx._gdx: teams, and the calls of the host on them. gdx/__init__.py makes arrays of it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/own_process.h"
#include "call.h"
#include "device/collectives/collectives.h"
#include "kernels.h"
#include "raise.h"
#include "stream.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace gdx::python {
namespace {

using Source = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Target = nb::ndarray<nb::c_contig, nb::device::cpu>;
using Word = nb::ndarray<std::uint64_t, nb::ro, nb::c_contig, nb::device::cpu>;
using TargetWord = nb::ndarray<std::uint64_t, nb::c_contig, nb::device::cpu>;
using HeapBytes = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

SignalOp op_of(std::string_view op) {
  if (op == "set") return SignalOp::kSet;
  if (op == "add") return SignalOp::kAdd;
  throw nb::value_error("op: use \"set\" or \"add\"");
}

Compare compare_of(std::string_view compare) {
  constexpr std::string_view kNames[] = {"==", "!=", ">=", ">", "<=", "<"};
  for (int i = 0; i < 6; ++i) {
    if (compare == kNames[i]) return static_cast<Compare>(i);
  }
  throw nb::value_error("compare: use \"==\", \"!=\", \">=\", \">\", \"<=\" or \"<\"");
}

template <typename Array>
std::uint64_t* word_of(const Array& word) {
  if (word.size() != 1) throw nb::value_error("a signal is one element of uint64, such as signals[3:4]");
  return const_cast<std::uint64_t*>(word.data());
}

template <typename To, typename From>
std::size_t equal_bytes(const To& to, const From& from) {
  if (to.nbytes() != from.nbytes()) throw nb::value_error("source and target have different lengths");
  return to.nbytes();
}

// Options of ranks whose launcher gives rank and size alone, as torchrun does. `exchange`, a function of the
// text of rank 0 and of seconds, carries it. Both are borrowed: ranks meet while the caller holds them.
// `interrupted` gets an exception of `exchange` that is no error, as KeyboardInterrupt.
Result<WorldOptions> world_by(nb::handle exchange, std::exception_ptr& interrupted) {
  auto options = WorldOptions::from_environment(
      [exchange, &interrupted](const std::string& mine, std::uint64_t deadline_ns) -> Result<std::string> {
        const nb::gil_scoped_acquire held;
        const std::uint64_t now_ns = monotonic_ns();
        const double left_s = deadline_ns > now_ns ? static_cast<double>(deadline_ns - now_ns) / 1e9 : 0;
        try {
          return nb::cast<std::string>(exchange(mine, left_s));
        } catch (const nb::python_error& error) {
          if (!error.matches(PyExc_Exception)) interrupted = std::current_exception();
          return fail(Status::kSystem, nb::str(error.value()).c_str());
        }
      });
  if (options)
    options->secret_readers =
        "torchrun's store has carried it, which knows nobody and encrypts nothing: whoever reaches "
        "MASTER_PORT, or listens on the network, can read it";
  return options;
}

template <typename Array>
std::byte* bytes_of(const Array& array) {
  return static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(array.data())));
}

// Calls of one team. The interpreter's lock guards the members.
struct Calls {
  [[nodiscard]] bool any() const { return running != 0 || streams->any(); }

  int running = 0;  // of the host
  std::shared_ptr<StreamCalls> streams = std::make_shared<StreamCalls>();
};

// A first team and its parts, which end with it. The interpreter's lock guards the members.
struct Family {
  bool closed = false;
  std::vector<std::weak_ptr<Calls>> calls;  // of each
};

// The interpreter's lock guards the members.
class PyTeam {
 public:
  PyTeam(std::uint64_t heap_bytes, std::optional<double> timeout_s,
         const std::optional<nb::callable>& exchange, std::optional<int> gpu)
      : gpu_(gpu) {
    TeamOptions options;
    options.heap_bytes = heap_bytes;
    options.gpu = gpu;
    if (timeout_s) {
      if (!(*timeout_s > 0 && *timeout_s <= 3600))
        throw nb::value_error("timeout_s: use 0 to 3600, and not 0");
      options.timeout_ns = static_cast<std::uint64_t>(std::ceil(*timeout_s * 1e9));
    }
    std::exception_ptr interrupted;
    if (exchange) options.world = take(world_by(*exchange, interrupted));
    auto made = [&] {
      const nb::gil_scoped_release released;
      return Team::create(options);
    }();
    if (interrupted) std::rethrow_exception(interrupted);
    team_.emplace(take(std::move(made)));
    family_->calls.push_back(calls_);
  }
  // The team of some ranks of `of`, which outlives it.
  PyTeam(PyTeam& of, const std::vector<std::uint32_t>& ranks, std::uint64_t tag)
      : gpu_(of.gpu_), is_part_(true), family_(of.family_) {
    team_.emplace(take(of.collective([&](Team& team) { return team.subteam(ranks, tag); })));
    std::erase_if(family_->calls, [](const std::weak_ptr<Calls>& calls) { return calls.expired(); });
    family_->calls.push_back(calls_);
  }
  PyTeam(const PyTeam&) = delete;
  PyTeam& operator=(const PyTeam&) = delete;
  ~PyTeam() {
    const nb::gil_scoped_release released;
    if (process_.is_here()) {
      if (team_ && !is_part_ && calls_->streams->any()) team_->abort();
      calls_->streams->end();
    }
    team_.reset();
  }

  [[nodiscard]] std::uint32_t rank() const { return opened().rank(); }
  [[nodiscard]] std::uint32_t size() const { return opened().size(); }
  [[nodiscard]] std::uintptr_t handle() const {
    return reinterpret_cast<std::uintptr_t>(opened().handle().copy);
  }

  void close() {
    if (!team_) return;
    check_no_call(*calls_, "this team");
    for (const std::weak_ptr<Calls>& calls : family_->calls) {
      const std::shared_ptr<Calls> of = calls.lock();
      if (!is_part_ && of) check_no_call(*of, "a part of this team");
    }
    if (!is_part_) family_->closed = true;
    auto closed = [this] {
      Team team = *std::exchange(team_, std::nullopt);
      const nb::gil_scoped_release released;
      return team.close();
    }();
    take(std::move(closed));
  }

  void barrier(Stream stream) {
    if (stream) return append({}, *stream, [](const TeamHandle& team) { return gdx_barrier(team); });
    take(collective([](Team& team) { return team.barrier(); }));
  }

  HeapBytes allocate(std::uint64_t bytes) {
    const std::shared_ptr<std::byte> pages = opened().heap_pages();
    if (!pages) raise(Status::kUnsupported, "the heap is memory of a GPU: make arrays of it there", {});
    void* const memory = take(collective([bytes](Team& team) { return team.allocate_bytes(bytes); }));
    const nb::capsule owner(new std::shared_ptr<std::byte>(pages), [](void* kept) noexcept {
      delete static_cast<std::shared_ptr<std::byte>*>(kept);
    });
    return HeapBytes(memory, {bytes}, owner);
  }

  void free(const Source& array) {
    take(collective([at = bytes_of(array)](Team& team) { return team.free(at); }));
  }

  void put(const Source& to, const Source& from, std::uint32_t rank, Stream stream) {
    call(rank, stream,
         [to = bytes_of(to), from = bytes_of(from), bytes = equal_bytes(to, from),
          rank](const TeamHandle& team) { return gdx_put(team, to, from, bytes, rank); });
  }

  void put_signal(const Source& to, const Source& from, const Word& signal, std::uint64_t value,
                  std::uint32_t rank, std::string_view op, Stream stream) {
    call(rank, stream,
         [to = bytes_of(to), from = bytes_of(from), bytes = equal_bytes(to, from), word = word_of(signal),
          value, how = op_of(op), rank](const TeamHandle& team) {
           return gdx_put_signal(team, to, from, bytes, word, value, how, rank);
         });
  }

  void signal(const Word& signal, std::uint64_t value, std::uint32_t rank, std::string_view op,
              Stream stream) {
    call(rank, stream, [word = word_of(signal), value, how = op_of(op), rank](const TeamHandle& team) {
      return gdx_signal(team, word, value, how, rank);
    });
  }

  void wait(const Word& signal, std::string_view compare, std::uint64_t value, Rank rank, Stream stream) {
    call(rank, stream,
         [word = word_of(signal), how = compare_of(compare), value, rank](const TeamHandle& team) {
           return rank ? gdx_wait(team, word, how, value, *rank) : gdx_wait(team, word, how, value);
         });
  }

  void get(const Target& to, const Source& from, std::uint32_t rank, Stream stream) {
    call(rank, stream,
         [to = bytes_of(to), from = bytes_of(from), bytes = equal_bytes(to, from),
          rank](const TeamHandle& team) { return gdx_get(team, to, from, bytes, rank); });
  }

  void fetch_add(const TargetWord& original, const Word& target, std::uint64_t add, std::uint32_t rank,
                 Stream stream) {
    call(rank, stream, [old = word_of(original), word = word_of(target), add, rank](const TeamHandle& team) {
      return gdx_fetch_add(team, old, word, add, rank);
    });
  }

  void compare_swap(const TargetWord& original, const Word& target, std::uint64_t compare, std::uint64_t swap,
                    std::uint32_t rank, Stream stream) {
    call(rank, stream,
         [old = word_of(original), word = word_of(target), compare, swap, rank](const TeamHandle& team) {
           return gdx_compare_swap(team, old, word, compare, swap, rank);
         });
  }

  void launch(const Kernels& kernels, const std::string& name, const nb::args& arguments,
              std::uint32_t blocks, std::uint32_t threads, std::uint32_t shared_bytes) {
    const ExportedKernel& kernel = kernels.find(name);
    const KernelValues values(name, kernel, arguments);
    const KernelLaunch launch{blocks, threads, shared_bytes, nullptr};
    Team& team = opened();
    const TeamHandle handle = team.handle();
    const bool alone = !calls_->any() && handle.fault->status == Status::kOk;
    with_call({}, [&](Call& call) { return call.run(kernel, launch, values.pointers()); });
    // Tells of a call whose status the kernel has dropped.
    const Status dropped = handle.fault->status;
    if (dropped == Status::kOk || !alone || calls_->any()) return;
    const Fault fault = take_fault(team, handle, dropped);
    raise(dropped, name + ": " + fault.message, fault.rank, fault.syndrome);
  }

  void quiet(Rank rank, Stream stream) {
    call(rank, stream,
         [rank](const TeamHandle& team) { return rank ? gdx_flush(team, *rank) : gdx_quiet(team); });
  }

  void synchronize(std::uintptr_t stream) {
    Team& team = opened();
    check_process({});
    const CudaDriver driver = CudaDriver::loaded();
    const int result = [&] {
      const InCall in_call(*calls_);
      const nb::gil_scoped_release released;
      return driver.synchronize(stream);
    }();
    if (result != 0 && result != kInvalidHandle) lose_stream_calls();
    check_driver("cuStreamSynchronize", result, {});
    const Status failed = calls_->streams->take_failure();
    if (failed != Status::kOk) raise_fault(team, failed, {});
  }

 private:
  [[nodiscard]] Team& opened() {
    if (!team_ || family_->closed) raise(Status::kInvalidArgument, "the team is closed: make another", {});
    return *team_;
  }
  [[nodiscard]] const Team& opened() const { return const_cast<PyTeam*>(this)->opened(); }

  template <typename T>
  static T take(Result<T> result) {
    if (!result) raise(result.error().status, result.error().message, {});
    return std::move(result).take();
  }

  template <typename Body>
  std::invoke_result_t<Body, Team&> collective(Body body) {
    Team& team = opened();
    const InCall in_call(*calls_);
    const nb::gil_scoped_release released;
    return body(team);
  }

  // `body(team)` holds addresses and numbers, because it may run on a thread without Python.
  template <typename Body>
  void call(Rank rank, Stream stream, Body body) {
    if (stream) return append(rank, *stream, body);
    with_call(rank, [&](Call& call) { return call.run(body); });
  }

  template <typename Body>
  void append(Rank rank, std::uintptr_t stream, Body body) {
    Team& team = opened();
    check_call(rank);
    check_driver("cuLaunchHostFunc",
                 calls_->streams->append(stream, team.handle(), team.heap_pages(), std::move(body)), rank);
  }

  template <typename Body>
  void with_call(Rank rank, Body body) {
    Team& team = opened();
    check_call(rank);
    if (Call::is_running())
      raise(Status::kBusy, "this thread is in a call already: let the signal's handler leave calls to others",
            rank);
    const TeamHandle handle = team.handle();
    Status status = Status::kOk;
    {
      const InCall in_call(*calls_);
      Call call(handle);
      status = body(call);
    }
    if (status == Status::kOk && PyErr_Occurred() == nullptr) return;
    if (PyErr_Occurred() != nullptr) {
      static_cast<void>(take_fault(team, handle, status));
      throw nb::python_error();
    }
    raise_fault(team, status, rank);
  }

  void check_process(Rank rank) const {
    if (!process_.is_here())
      raise(Status::kInvalidArgument, "this process was forked from the rank's: make the call there", rank);
  }
  void check_call(Rank rank) const {
    check_process(rank);
    if (!gpu_) return;
    raise(Status::kUnsupported,
          "kernels of GPU " + std::to_string(*gpu_) +
              " use this team: make the call in one of them, or the team without gpu=",
          rank);
  }
  // `of`: the calls' team.
  static void check_no_call(const Calls& calls, const std::string& of) {
    if (calls.running != 0)
      raise(Status::kBusy, "another thread is in a call of " + of + ": let it return first", {});
    if (calls.streams->any())
      raise(Status::kBusy, "calls of " + of + " wait on a stream: synchronize it first", {});
  }
  static constexpr int kInvalidHandle = 400;  // CUDA_ERROR_INVALID_HANDLE
  static void check_driver(const std::string& function, int result, Rank rank) {
    if (result == 0) return;
    if (result == kInvalidHandle)
      raise(Status::kInvalidArgument, "stream: no stream of CUDA in this process has this handle", rank);
    raise(Status::kSystem, "stream: " + function + " returned error " + std::to_string(result), rank);
  }

  struct Fault {
    std::string message;
    Rank rank;
    Syndrome syndrome;
  };
  // Empties the team's record, so that the next failure is described. Of calls that fail beside one another
  // the record has only one.
  Fault take_fault(Team& team, const TeamHandle& handle, Status status) const {
    if (calls_->any() || handle.fault == nullptr || handle.fault->status != status)
      return {status_name(status), {}, {}};
    const std::uint32_t rank = handle.fault->rank;
    Fault fault{team.describe_fault(), {}, {}};
    if (rank < handle.size) {
      fault.rank = rank;
      const QueueState* const state = team.endpoint(0, rank).state;
      if (state != nullptr && state->fault.syndrome != 0) fault.syndrome = state->fault.syndrome;
    }
    team.clear_fault();
    return fault;
  }
  [[noreturn]] void raise_fault(Team& team, Status status, Rank rank) const {
    const Fault fault = take_fault(team, team.handle(), status);
    raise(status, fault.message, rank ? rank : fault.rank, fault.syndrome);
  }
  // Drops the calls that wait on streams: after an error the driver may never make them.
  void lose_stream_calls() {
    const InCall in_call(*calls_);
    const auto lost = std::exchange(calls_->streams, std::make_shared<StreamCalls>());
    const nb::gil_scoped_release released;
    lost->end();
  }

  // Keeps close() away.
  class InCall {
   public:
    explicit InCall(Calls& calls) : calls_(calls) { ++calls_.running; }
    ~InCall() { --calls_.running; }
    InCall(const InCall&) = delete;
    InCall& operator=(const InCall&) = delete;

   private:
    Calls& calls_;
  };

  OwnProcess process_;
  std::optional<int> gpu_;
  std::optional<Team> team_;
  bool is_part_ = false;
  std::shared_ptr<Calls> calls_ = std::make_shared<Calls>();
  std::shared_ptr<Family> family_ = std::make_shared<Family>();
};

}  // namespace
}  // namespace gdx::python

NB_MODULE(_gdx, module) {
  using gdx::python::Kernels;
  using gdx::python::PyTeam;
  nb::class_<Kernels>(module, "Kernels",
                      "Kernels of a shared object, by the names that GDX_EXPORT_KERNEL gives them.")
      .def(nb::init<const std::filesystem::path&>(), "path"_a,
           "Loads the shared object, which stays loaded. Raises OSError where it cannot be.");
  // A copy that is converted would be put in silence, and nobody waits for what is put into one: noconvert.
  nb::class_<PyTeam>(
      module, "Team",
      "Ranks with a symmetric heap. gdx.Team adds arrays.\n\n"
      "With `stream`, the handle of a stream of CUDA as a number, a call returns at once, and is made in\n"
      "the stream's turn. synchronize() then raises what it failed with. Until then later calls on streams\n"
      "do nothing.")
      .def(nb::init<std::uint64_t, std::optional<double>, std::optional<nb::callable>, std::optional<int>>(),
           "heap_bytes"_a, "timeout_s"_a = nb::none(), "exchange"_a = nb::none(), "gpu"_a = nb::none())
      .def(nb::init<PyTeam&, const std::vector<std::uint32_t>&, std::uint64_t>(), nb::keep_alive<1, 2>(),
           "of"_a, "ranks"_a, "tag"_a, "Makes the team of some ranks of another. Python calls Team.subteam.")
      .def_prop_ro("rank", &PyTeam::rank)
      .def_prop_ro("size", &PyTeam::size)
      .def_prop_ro(
          "handle", &PyTeam::handle,
          "Address of the gdx::TeamHandle, for kernels that take a pointer to it. Valid until close().")
      .def("close", &PyTeam::close,
           "Waits for all ranks, then ends this one's part. Arrays keep their memory. Collective.")
      .def("barrier", &PyTeam::barrier, nb::kw_only(), "stream"_a = nb::none(),
           "Returns once every rank has called it. Collective.")
      .def("synchronize", &PyTeam::synchronize, "stream"_a,
           "Waits for the stream, and raises what the first call failed with that a stream has made on this "
           "team.\n\n"
           "After an error of the driver, calls of this team that wait on any stream are dropped.")
      .def("_allocate", &PyTeam::allocate, "bytes"_a)
      .def("free", &PyTeam::free, "array"_a.noconvert(),
           "Gives back what array() returned, once no rank uses it any more. Collective.")
      .def("put", &PyTeam::put, "to"_a.noconvert(), "source"_a.noconvert(), "rank"_a, nb::kw_only(),
           "stream"_a = nb::none(),
           "Copies `source` to the place of `to` at `rank`. Both are parts of arrays of this team.\n\n"
           "The source may be changed after quiet(). Puts land in any order until the next signal.")
      .def("put_signal", &PyTeam::put_signal, "to"_a.noconvert(), "source"_a.noconvert(),
           "signal"_a.noconvert(), "value"_a, "rank"_a, "op"_a = "set", nb::kw_only(),
           "stream"_a = nb::none(),
           "Makes put(), then signal(): who reads the signal also reads what was put before it.")
      .def("signal", &PyTeam::signal, "signal"_a.noconvert(), "value"_a, "rank"_a, "op"_a = "set",
           nb::kw_only(), "stream"_a = nb::none(),
           "Sets the word `signal` at `rank`, or adds to it with op \"add\", after all earlier puts.")
      .def("wait", &PyTeam::wait, "signal"_a.noconvert(), "compare"_a, "value"_a, "rank"_a = nb::none(),
           nb::kw_only(), "stream"_a = nb::none(),
           "Waits until this rank's `signal` compares true. `rank` is to change it, and its death ends the "
           "wait.")
      .def("get", &PyTeam::get, "to"_a.noconvert(), "source"_a.noconvert(), "rank"_a, nb::kw_only(),
           "stream"_a = nb::none(), "Copies the place of `source` at `rank` to `to`. Complete after quiet().")
      .def("fetch_add", &PyTeam::fetch_add, "original"_a.noconvert(), "target"_a.noconvert(), "add"_a,
           "rank"_a, nb::kw_only(), "stream"_a = nb::none(),
           "Atomically adds to the word `target` at `rank`. Its old value is in `original` after quiet().")
      .def("compare_swap", &PyTeam::compare_swap, "original"_a.noconvert(), "target"_a.noconvert(),
           "compare"_a, "swap"_a, "rank"_a, nb::kw_only(), "stream"_a = nb::none(),
           "Atomically replaces the word `target` at `rank` by `swap` if it equals `compare`.\n\n"
           "Its old value is in `original` after quiet() either way.")
      .def("launch", &PyTeam::launch, "kernels"_a, "name"_a, "arguments"_a, nb::kw_only(), "blocks"_a = 1,
           "threads"_a = 1, "shared_bytes"_a = 0,
           nb::sig("def launch(self, kernels: Kernels, name: str, *arguments: object, blocks: int = 1, "
                   "threads: int "
                   "= 1, shared_bytes: int = 0) -> None"),
           "Runs a kernel of a shared object on this team, and returns when it has.\n\n"
           "Arguments are those behind its team: numbers, and arrays for pointers.")
      .def("quiet", &PyTeam::quiet, "rank"_a = nb::none(), nb::kw_only(), "stream"_a = nb::none(),
           "Waits until all that was posted to `rank`, or to all ranks, is complete.");
}
