// Client of PMIx by libpmix.so.2, which is loaded once a launcher has set PMIx's variables. So neither gdx
// nor a program that links it needs libpmix, and a gdx that was built without its headers works under mpirun.
#include "host/launch/pmix.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

#include "base/clock.h"
#include "host/launch/meeting.h"

namespace gdx::launch {
namespace {

using pmix::Process;
using pmix::Value;

constexpr std::chrono::milliseconds kBetweenTries{20};

struct Library {
  pmix::Init init = nullptr;
  pmix::Finalize finalize = nullptr;
  pmix::Put put = nullptr;
  pmix::Commit commit = nullptr;
  pmix::GetNb get = nullptr;
  pmix::ErrorString text = nullptr;
};

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

Result<Library> load(const Launcher& launcher) {
  // Never unloaded, because it keeps a thread. A program's MPI has the same one, which counts its users.
  void* const opened = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
  Library library;
  if (opened == nullptr || !find(opened, "PMIx_Init", library.init) ||
      !find(opened, "PMIx_Finalize", library.finalize) || !find(opened, "PMIx_Put", library.put) ||
      !find(opened, "PMIx_Commit", library.commit) || !find(opened, "PMIx_Get_nb", library.get) ||
      !find(opened, "PMIx_Error_string", library.text)) {
    return fail(
        Status::kUnsupported,
        fmt::format("{} cannot be used, because libpmix.so.2 cannot be loaded ({}): install it (Debian's "
                    "libpmix2), name its folder in LD_LIBRARY_PATH, or set GDX_ROOT=HOST:PORT and "
                    "GDX_RANK, GDX_WORLD_SIZE for each rank",
                    launcher.name, opened == nullptr ? dlerror() : "it lacks a function"));
  }
  return library;
}

// An answer for which a thread waits. It is shared, because the library may give the answer after the thread
// has stopped waiting.
struct Pending {
  std::mutex mutex;
  std::condition_variable told;
  bool done = false;
  int status = 0;
  std::variant<std::monostate, std::uint32_t, std::string> value;
};

void take_answer(int status, const Value* value, void* context) {
  const std::unique_ptr<std::shared_ptr<Pending>> held(static_cast<std::shared_ptr<Pending>*>(context));
  Pending& pending = **held;
  const std::lock_guard lock(pending.mutex);
  pending.status = status;
  if (status == pmix::kSuccess && value != nullptr) {
    if (value->type == pmix::kUint32) pending.value = value->data.uint32;
    if (value->type == pmix::kString && value->data.string != nullptr) pending.value = value->data.string;
  }
  pending.done = true;
  pending.told.notify_one();
}

class Pmix final : public Meeting {
 public:
  Pmix(const Launcher& launcher, const Library& library)
      : name_(launcher.name), library_(library), owner_(getpid()) {}
  ~Pmix() override {
    if (owner_ == getpid() && is_open_) library_.finalize(nullptr, 0);
  }

  Result<void> introduce(std::uint64_t deadline_ns);
  Result<std::string> exchange(const std::string& text, std::uint64_t deadline_ns) override;

 private:
  // Returns what `rank` has put under `key`, once it has. Errors: kTimeout with the library's last reason.
  template <typename T>
  Result<T> get(std::uint32_t rank, const std::string& key, std::uint64_t deadline_ns);
  [[nodiscard]] tl::unexpected<Error> refusal(const char* call, int status) const {
    return fail(Status::kSystem, fmt::format("{}: {} fails: {}", name_, call, library_.text(status)));
  }

  std::string name_;
  Library library_;
  pid_t owner_;
  bool is_open_ = false;
  Process self_{};
  std::uint32_t worlds_ = 0;
};

// Asks again after a refusal, because servers give up after a time of their own: Open MPI's after 2 s.
template <typename T>
Result<T> Pmix::get(std::uint32_t rank, const std::string& key, std::uint64_t deadline_ns) {
  Process process = self_;
  process.rank = rank;
  int status = 0;
  for (;;) {
    const auto pending = std::make_shared<Pending>();
    auto held = std::make_unique<std::shared_ptr<Pending>>(pending);
    status = library_.get(&process, key.c_str(), nullptr, 0, &take_answer, held.get());
    const auto until =
        std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline_ns));  // CLOCK_MONOTONIC
    if (status == pmix::kSuccess) {
      static_cast<void>(held.release());  // take_answer owns it from here on
      std::unique_lock lock(pending->mutex);
      if (!pending->told.wait_until(lock, until, [&] { return pending->done; })) break;
      status = pending->status;
      if (T* const value = std::get_if<T>(&pending->value)) return std::move(*value);
    }
    if (monotonic_ns() >= deadline_ns) break;
    std::this_thread::sleep_for(kBetweenTries);
  }
  return fail(Status::kTimeout, status == pmix::kSuccess ? "no answer" : library_.text(status));
}

Result<void> Pmix::introduce(std::uint64_t deadline_ns) {
  if (const int status = library_.init(&self_, nullptr, 0); status != pmix::kSuccess)
    return refusal("PMIx_Init", status);
  is_open_ = true;
  rank_ = self_.rank;
  auto size = get<std::uint32_t>(pmix::kEveryRank, "pmix.job.size", deadline_ns);
  if (!size)
    return fail(Status::kSystem,
                fmt::format("{} does not tell the size of the job: {}", name_, size.error().message));
  size_ = *size;
  const auto here = get<std::uint32_t>(pmix::kEveryRank, "pmix.local.size", deadline_ns);
  one_host_ = here && *here == size_;
  return {};
}

Result<std::string> Pmix::exchange(const std::string& text, std::uint64_t deadline_ns) {
  if (text.size() > kMaxTextBytes)
    return fail(Status::kInvalidLength, fmt::format("{} bytes are too many for {}", text.size(), name_));
  const std::string key = fmt::format("gdx.root.{}", worlds_++);
  if (rank_ != 0) {
    auto got = get<std::string>(0, key, deadline_ns);
    if (got) return got;
    return fail(
        Status::kTimeout,
        fmt::format(
            "rank 0 has not told by {} where it listens ({}): start the same program on all, or raise "
            "the timeout (GDX_BOOTSTRAP_TIMEOUT_S)",
            name_, got.error().message));
  }
  std::string copy = text;
  Value value{};
  value.type = pmix::kString;
  value.data.string = copy.data();
  if (const int status = library_.put(pmix::kGlobal, key.c_str(), &value); status != pmix::kSuccess)
    return refusal("PMIx_Put", status);
  if (const int status = library_.commit(); status != pmix::kSuccess) return refusal("PMIx_Commit", status);
  return text;
}

}  // namespace

Result<std::shared_ptr<Meeting>> open_pmix(const Launcher& launcher, std::uint64_t deadline_ns) {
  const auto library = GDX_TRY(load(launcher));
  auto opened = std::make_shared<Pmix>(launcher, library);
  GDX_TRY(opened->introduce(deadline_ns));
  return std::shared_ptr<Meeting>(std::move(opened));
}

}  // namespace gdx::launch
