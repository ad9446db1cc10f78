#include "device/exec/cpu_stream.h"

#include <unistd.h>

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace gdx::exec {
namespace {

// One record of an event. Threads: any.
class Record {
 public:
  void complete() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

}  // namespace

class CpuStream {
 public:
  CpuStream() : thread_([this] { run(); }) {}
  ~CpuStream() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
    if (failure_ == Status::kOk) return;
    std::fprintf(stderr,
                 "gdx: a stream ended with a failed launch that nobody asked for: %s; synchronize it\n",
                 status_name(failure_));
  }
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;

  // Returns whether its thread is of this process, and not of the one from which this one was forked.
  [[nodiscard]] bool is_here() const { return getpid() == process_; }

  // `always`: also after a failed launch, because other streams may wait for it.
  void append(std::function<Status()> work, bool always) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back({std::move(work), always});
      ++appended_;
    }
    changed_.notify_all();
  }
  Status synchronize() {
    std::unique_lock lock(mutex_);
    const std::uint64_t until = appended_;
    changed_.wait(lock, [&] { return ended_ >= until; });
    return std::exchange(failure_, Status::kOk);
  }
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return ended_ == appended_;
  }

 private:
  struct Work {
    std::function<Status()> run;
    bool always;
  };

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || !work_.empty(); });
      if (work_.empty()) return;
      Work next = std::move(work_.front());
      work_.pop_front();
      if (next.always || failure_ == Status::kOk) {
        lock.unlock();
        const Status status = next.run();
        next.run = nullptr;  // ends what it holds before a host that waits goes on
        lock.lock();
        if (failure_ == Status::kOk) failure_ = status;
      }
      ++ended_;
      changed_.notify_all();
    }
  }

  const pid_t process_ = getpid();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> work_;
  std::uint64_t appended_ = 0;
  std::uint64_t ended_ = 0;
  Status failure_ = Status::kOk;
  bool ends_ = false;
  std::thread thread_;  // last, because it uses the others
};

class CpuEvent {
 public:
  std::shared_ptr<Record> renew() {
    const std::lock_guard lock(mutex_);
    newest_ = std::make_shared<Record>();
    return newest_;
  }
  std::shared_ptr<Record> newest() {
    const std::lock_guard lock(mutex_);
    return newest_;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<Record> newest_;
};

Status create_stream(Stream* stream) {
  try {
    *stream = std::make_unique<CpuStream>().release();
    return Status::kOk;
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "gdx: no host thread for a stream: %s; end other streams or raise ulimit -u\n",
                 error.what());
    return Status::kSystem;
  }
}

void destroy_stream(Stream stream) {
  if (stream != nullptr && stream->is_here()) const std::unique_ptr<CpuStream> ends(stream);
}

Status refuse_in_child() {
  std::fprintf(
      stderr,
      "gdx: process %d was forked from the one whose team or stream this launch names: launch there, "
      "or begin with another program by exec\n",
      getpid());
  return Status::kInvalidArgument;
}

// Returns kOk for a stream of this process.
static Status check(Stream stream) {
  if (stream == nullptr) return Status::kInvalidArgument;
  return stream->is_here() ? Status::kOk : refuse_in_child();
}

Status enqueue(Stream stream, std::function<Status()> work) {
  if (const Status status = check(stream); status != Status::kOk) return status;
  stream->append(std::move(work), false);
  return Status::kOk;
}

Status synchronize(Stream stream) {
  const Status status = check(stream);
  return status == Status::kOk ? stream->synchronize() : status;
}

Status query(Stream stream) {
  if (const Status status = check(stream); status != Status::kOk) return status;
  return stream->is_idle() ? Status::kOk : Status::kPending;
}

Status create_event(Event* event) {
  *event = std::make_unique<CpuEvent>().release();
  return Status::kOk;
}

void destroy_event(Event event) { const std::unique_ptr<CpuEvent> ends(event); }

Status record(Event event, Stream stream) {
  if (event == nullptr) return Status::kInvalidArgument;
  if (const Status status = check(stream); status != Status::kOk) return status;
  const auto complete = [record = event->renew()] {
    record->complete();
    return Status::kOk;
  };
  stream->append(complete, true);
  return Status::kOk;
}

Status wait_for(Stream stream, Event event) {
  if (event == nullptr) return Status::kInvalidArgument;
  if (const Status status = check(stream); status != Status::kOk) return status;
  const std::shared_ptr<Record> record = event->newest();
  if (record == nullptr) return Status::kOk;
  const auto wait = [record] {
    record->wait();
    return Status::kOk;
  };
  stream->append(wait, true);
  return Status::kOk;
}

Status synchronize(Event event) {
  if (event == nullptr) return Status::kInvalidArgument;
  if (const std::shared_ptr<Record> record = event->newest()) record->wait();
  return Status::kOk;
}

}  // namespace gdx::exec
