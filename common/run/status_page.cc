#include "common/run/status_page.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/clock.h"
#include "common/base/fd.h"
#include "common/base/status.h"
#include "common/run/run_file.h"

namespace nsa {
namespace {

constexpr uint64_t kMagic = 0x3176'6567'6150'534e;  // "NSPagev1"
constexpr size_t kPageBytes = 4096;

// A text of up to kBytes - 1 bytes and a final zero, in words that are copied with atomic loads and
// stores.
template <size_t kBytes>
struct Text {
  std::array<std::atomic<uint64_t>, kBytes / 8> words;

  // Every store of an update has release order: a reader that sees the new word also sees the odd
  // sequence number stored before it. (Not a fence: ThreadSanitizer does not support fences.)
  void Store(std::string_view text) {
    char buffer[kBytes] = {};
    std::memcpy(buffer, text.data(), std::min(text.size(), kBytes - 1));
    for (size_t i = 0; i < words.size(); ++i) {
      uint64_t word = 0;
      std::memcpy(&word, buffer + 8 * i, 8);
      words[i].store(word, std::memory_order_release);
    }
  }

  std::string Load() const {
    char buffer[kBytes];
    for (size_t i = 0; i < words.size(); ++i) {
      const uint64_t word = words[i].load(std::memory_order_acquire);
      std::memcpy(buffer + 8 * i, &word, 8);
    }
    return std::string(buffer, strnlen(buffer, kBytes));
  }
};

int64_t MonotonicNanos() { return absl::ToInt64Nanoseconds(RealClock().Monotonic()); }

template <typename T>
void Put(std::atomic<T>* field, T value) {
  field->store(value, std::memory_order_release);
}

template <typename T>
T Get(const std::atomic<T>& field) {
  return field.load(std::memory_order_acquire);
}

}  // namespace

struct StatusPage::Layout {
  std::atomic<uint64_t> magic;
  std::atomic<uint64_t> sequence;  // odd during an update
  std::atomic<int64_t> pid;
  std::atomic<int64_t> generation;
  std::atomic<int64_t> rank;
  std::atomic<int64_t> world_size;
  std::atomic<int64_t> step;
  std::atomic<int64_t> micro_step;
  std::atomic<uint64_t> phase;
  std::atomic<int64_t> layer;
  std::atomic<int64_t> collective_sequence;
  std::atomic<int64_t> progress;
  std::atomic<int64_t> updated_monotonic_nanos;
  Text<48> kernel;
  Text<48> collective;
  Text<512> telemetry_error;  // zeros on the page of an older build without this field
};

namespace {

using Layout = StatusPage::Layout;
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(Layout) <= kPageBytes);

// Maps a page of a file, or anonymous memory if fd is -1.
void* Map(int fd, int protection) {
  const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* const memory = mmap(nullptr, kPageBytes, protection, flags, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

Layout* Initialise(void* memory, int32_t rank, int32_t world_size, int64_t generation) {
  auto* const page = new (memory) Layout();
  Put<int64_t>(&page->pid, getpid());
  Put<int64_t>(&page->rank, rank);
  Put<int64_t>(&page->world_size, world_size);
  Put(&page->generation, generation);
  Put<int64_t>(&page->layer, -1);
  Put(&page->updated_monotonic_nanos, MonotonicNanos());
  Put(&page->magic, kMagic);
  return page;
}

WorkerStatus CopyOut(const Layout& page) {
  return {.pid = Get(page.pid),
          .rank = static_cast<int32_t>(Get(page.rank)),
          .world_size = static_cast<int32_t>(Get(page.world_size)),
          .generation = Get(page.generation),
          .step = Get(page.step),
          .micro_step = static_cast<int32_t>(Get(page.micro_step)),
          .phase = static_cast<Phase>(Get(page.phase)),
          .layer = static_cast<int32_t>(Get(page.layer)),
          .kernel = CleanLine(page.kernel.Load()),
          .collective = CleanLine(page.collective.Load()),
          .collective_sequence = Get(page.collective_sequence),
          .progress = Get(page.progress),
          .updated_monotonic_nanos = Get(page.updated_monotonic_nanos),
          .telemetry_error = CleanLine(page.telemetry_error.Load())};
}

// The page as pread() copies it. It is not mapped: a page that its writer makes shorter would end
// the reader (SIGBUS).
absl::Status CopyPage(int fd, Layout* page) {
  const ssize_t n = pread(fd, page, sizeof(Layout), 0);
  if (n == static_cast<ssize_t>(sizeof(Layout))) return absl::OkStatus();
  if (n < 0) return absl::ErrnoToStatus(errno, "status page: read");
  return absl::DataLossError("status page: it became shorter while it was read");
}

// The reading side of the sequence lock. An update takes nanoseconds. If the writer was preempted
// during an update, it gets the processor again while this function yields. If it was stopped or
// died during an update, this function gives up after 0.2 s. Each copy is one system call, so
// the copy in the middle is taken after the first and before the last one.
absl::StatusOr<WorkerStatus> ReadConsistently(int fd) {
  const int64_t give_up = MonotonicNanos() + 200'000'000;
  Layout before = {}, page = {}, after = {};
  do {
    for (Layout* copy : {&before, &page, &after}) NSA_RETURN_IF_ERROR(CopyPage(fd, copy));
    if (Get(page.magic) != kMagic) {
      return absl::DataLossError("status page: not a page of this version");
    }
    const uint64_t sequence = Get(before.sequence);
    if (sequence % 2 == 0 && Get(after.sequence) == sequence) return CopyOut(page);
    sched_yield();
  } while (MonotonicNanos() < give_up);
  return absl::UnavailableError("status page: its writer stopped in the middle of an update");
}

}  // namespace

std::string PhaseName(Phase phase) {
  switch (phase) {
    case Phase::kStarting:
      return "starting";
    case Phase::kLoadingCheckpoint:
      return "loading_checkpoint";
    case Phase::kWaitingForPeers:
      return "waiting_for_peers";
    case Phase::kData:
      return "data";
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kReduce:
      return "reduce";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kEval:
      return "eval";
    case Phase::kCheckpoint:
      return "checkpoint";
    case Phase::kTelemetry:
      return "telemetry";
    case Phase::kFinished:
      return "finished";
  }
  return absl::StrFormat("unknown(%d)", static_cast<uint32_t>(phase));
}

std::string WorkerStatus::Place() const {
  std::string text = PhaseName(phase);
  if (layer >= 0) absl::StrAppend(&text, " layer ", layer);
  if (!kernel.empty()) absl::StrAppend(&text, " kernel ", kernel);
  if (!collective.empty()) {
    absl::StrAppend(&text, " waiting in ", collective, " #", collective_sequence);
  }
  return text;
}

std::string WorkerStatus::ToString(int64_t now_monotonic_nanos) const {
  const double age = static_cast<double>(now_monotonic_nanos - updated_monotonic_nanos) / 1e9;
  return absl::StrFormat("rank %d/%d gen %d pid %d: step %d micro %d %s, %.1f s ago", rank,
                         world_size, generation, pid, step, micro_step, Place(),
                         std::max(0.0, age));
}

StatusPage::StatusPage() {
  void* const memory = Map(-1, PROT_READ | PROT_WRITE);
  if (memory == nullptr) {  // Not even one page: out of memory.
    std::fputs("status page: mmap failed\n", stderr);
    std::abort();
  }
  page_ = Initialise(memory, 0, 1, 0);
}

absl::StatusOr<StatusPage> StatusPage::Create(const std::filesystem::path& path, int32_t rank,
                                              int32_t world_size, int64_t generation) {
  // Under a temporary name first, so that a reader of an older page never sees a partial one.
  const std::string temporary = path.string() + ".tmp";
  const Fd fd(open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid())
    return absl::ErrnoToStatus(errno, absl::StrCat("status page: create ", temporary));
  // Allocate the space now. Otherwise a store would end the process (SIGBUS) if the disk is full.
  int error = posix_fallocate(fd.get(), 0, kPageBytes);
  void* const memory = error == 0 ? Map(fd.get(), PROT_READ | PROT_WRITE) : nullptr;
  if (error == 0 && memory == nullptr) error = errno;
  if (error != 0) {
    unlink(temporary.c_str());
    return absl::ErrnoToStatus(error, absl::StrCat("status page: map ", temporary));
  }
  StatusPage page(Initialise(memory, rank, world_size, generation));
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("status page: rename to ", path.string()));
  }
  return page;
}

StatusPage::StatusPage(StatusPage&& other) noexcept
    : page_(std::exchange(other.page_, nullptr)),
      observer_(std::exchange(other.observer_, nullptr)) {}

StatusPage& StatusPage::operator=(StatusPage&& other) noexcept {
  std::swap(page_, other.page_);
  std::swap(observer_, other.observer_);
  return *this;
}

StatusPage::~StatusPage() {
  if (page_ != nullptr) munmap(page_, kPageBytes);
}

template <typename Store>
void StatusPage::Update(Store store) {
  const uint64_t sequence = page_->sequence.load(std::memory_order_relaxed);
  page_->sequence.store(sequence + 1, std::memory_order_relaxed);
  store(*page_);
  Put(&page_->progress, page_->progress.load(std::memory_order_relaxed) + 1);
  Put(&page_->updated_monotonic_nanos, MonotonicNanos());
  page_->sequence.store(sequence + 2, std::memory_order_release);
}

void StatusPage::SetStep(int64_t step) {
  Update([step](Layout& page) { Put(&page.step, step); });
}

void StatusPage::SetMicroStep(int32_t micro_step) {
  Update([micro_step](Layout& page) { Put<int64_t>(&page.micro_step, micro_step); });
  if (observer_ != nullptr) observer_->OnMicroStep(micro_step);
}

void StatusPage::SetPhase(Phase phase) {
  Update([phase](Layout& page) { Put(&page.phase, static_cast<uint64_t>(phase)); });
  if (observer_ != nullptr) observer_->OnPhase(phase);
}

void StatusPage::SetLayer(int32_t layer) {
  Update([layer](Layout& page) { Put<int64_t>(&page.layer, layer); });
  if (observer_ != nullptr) observer_->OnLayer(layer);
}

void StatusPage::SetKernel(std::string_view kernel) {
  Update([kernel](Layout& page) { page.kernel.Store(kernel); });
  if (observer_ != nullptr) observer_->OnKernel(kernel);
}

void StatusPage::SetTelemetryError(std::string_view error) {
  error = Shorten(error, 511);  // it is sent as UTF-8
  Update([error](Layout& page) { page.telemetry_error.Store(error); });
}

void StatusPage::EnterCollective(std::string_view name) {
  Update([name](Layout& page) {
    page.kernel.Store("");
    page.collective.Store(name);
    Put(&page.collective_sequence, page.collective_sequence.load(std::memory_order_relaxed) + 1);
  });
  if (observer_ != nullptr) observer_->OnCollective(name);
}

void StatusPage::LeaveCollective() {
  Update([](Layout& page) { page.collective.Store(""); });
  if (observer_ != nullptr) observer_->OnCollective("");
}

void StatusPage::Touch() {
  Update([](Layout&) {});
}

absl::StatusOr<WorkerStatus> ReadStatusPage(const std::filesystem::path& path) {
  const absl::StatusOr<Fd> fd = OpenRunFile(path);
  NSA_RETURN_IF_ERROR(Annotate(fd.status(), "status page"));
  struct stat info = {};
  if (fstat(fd->get(), &info) != 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("status page: stat ", path.string()));
  if (info.st_size != static_cast<off_t>(kPageBytes)) {
    return absl::DataLossError(absl::StrFormat("status page: %s has %d bytes (must have %d)",
                                               path.string(), info.st_size, kPageBytes));
  }
  absl::StatusOr<WorkerStatus> status = ReadConsistently(fd->get());
  if (status.ok()) return status;
  return Annotate(status.status(), path.string());
}

}  // namespace nsa
