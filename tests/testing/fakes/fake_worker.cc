// The fake worker: a program (build/<preset>/bin/fake_worker, never installed) that keeps the
// contract of nsa-worker with its agent (run folder, journal, status page, control socket, exit
// codes, checkpoint folders) without training. `fake_worker --run-dir DIR` takes steps, seq_len,
// batch_size, save_every, eval_every and out_dir from the spec in DIR/launch.pb, and its behaviour
// from the spec's labels:
//
//   fake.step_ms            time of a step; default 5
//   fake.crash_at_step      dies by a signal in the middle of this step
//   fake.crash_signal       the signal; default 11 (SIGSEGV)
//   fake.exit_at_step       ends with WorkerFinished after this step
//   fake.exit_outcome       completed, stopped, failed (default) or failed_final
//   fake.exit_reason        reason of that record; default FAKE
//   fake.hang_at_step       makes no progress in this step, in a collective called "all_reduce"
//   fake.hold_at_step       waits before this step until a stop is requested or the file out_dir/go
//                           exists
//   fake.ignore_stop        "1": answers stop requests, but ignores them and SIGTERM
//   fake.deaf               "1": no control socket; only a stop in launch.pb has an effect
//   fake.stall_start        "1": does nothing at all, as one whose program cannot be read
//   fake.fail_start         "1": exits with 2 before its first record
//   fake.log_bytes          bytes of log per step, in lines of at most 100 bytes
//   fake.print_environment  "1": writes its environment to the log at start, one variable per line
//   fake.profile            what it makes of a request for a trace: "none" (default), "file" (one
//   of
//                           600,000 bytes in its second reply), "refuse"
//   fake.threads            extra threads that wait in nsa::fake::WaitForEver; default 2
//   fake.rank               the rank that the faults above apply to; default all
//   fake.generations        crash, exit and hang apply up to this generation; default 1
//
// Ranks of a gang wait for each other after every step (by their status pages), end with PEER_LOST
// when one is gone, and all stop after the same step. A stop in launch.pb is in force from the
// first step.
//
// The loss depends on the step only, so an interrupted run can be compared with an uninterrupted
// one. It resumes from the newest out_dir/checkpoints/step-XXXXXXXX, which rank 0 writes and which
// holds one file, `fake`.
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/run/atomic_file.h"
#include "common/run/control_socket.h"
#include "common/run/journal.h"
#include "common/run/process.h"
#include "common/run/run_dir.h"
#include "common/run/status_page.h"
#include "nsa/v1/worker.pb.h"

extern char** environ;

namespace nsa::fake {
namespace {

namespace fs = std::filesystem;

constexpr int kBadUsage = 2;

// The behaviour that the labels set.
class Behaviour {
 public:
  explicit Behaviour(const v1::WorkerLaunch& launch) : launch_(launch) {}

  int64_t Number(const char* name, int64_t otherwise) const {
    int64_t value = otherwise;
    const std::string text = Text(name, "");
    if (!text.empty() && !absl::SimpleAtoi(text, &value)) {
      std::fprintf(stderr, "fake_worker: label fake.%s: '%s' is no number\n", name, text.c_str());
      std::exit(kBadUsage);
    }
    return value;
  }
  std::string Text(const char* name, const std::string& otherwise) const {
    const auto label = launch_.spec().labels().find(absl::StrCat("fake.", name));
    return label == launch_.spec().labels().end() ? otherwise : label->second;
  }
  // True when the fault `name` is set for this step.
  bool FaultAt(const char* name, int64_t step) const {
    return Number(name, -1) == step && OnThisRank() &&
           launch_.generation() <= Number("generations", 1);
  }
  bool OnThisRank() const { return Number("rank", launch_.rank()) == launch_.rank(); }

 private:
  const v1::WorkerLaunch& launch_;
};

// The stop request that the control socket's thread passes to the training loop.
struct Stop {
  std::atomic<int64_t> after_step = INT64_MAX;
  std::atomic<int> mode = v1::STOP_MODE_UNSPECIFIED;
};

// Waits in a function whose name a stack dump can show.
[[gnu::noinline]] void WaitForEver() {
  while (true) {
    poll(nullptr, 0, -1);
    asm volatile("");
  }
}
[[gnu::noinline]] void HelperThread() {
  WaitForEver();
  asm volatile("");
}

class Worker {
 public:
  Worker(const RunDir& dir, v1::WorkerLaunch launch)
      : dir_(dir), launch_(std::move(launch)), behaviour_(launch_), page_() {}

  absl::StatusOr<int> Run() {
    if (launch_.has_stop()) SetStop(launch_.stop());
    NSA_ASSIGN_OR_RETURN(journal_, JournalWriter::Create(dir_.journal()));
    NSA_ASSIGN_OR_RETURN(page_, StatusPage::Create(dir_.status(), launch_.rank(),
                                                   launch_.world_size(), launch_.generation()));
    std::unique_ptr<ControlServer> server;
    if (behaviour_.Text("deaf", "") != "1") {
      NSA_ASSIGN_OR_RETURN(server, ControlServer::Start(dir_.control(), [this](const auto& r) {
                             return Answer(r);
                           }));
    }
    for (int64_t i = behaviour_.Number("threads", 2); i > 0; --i) {
      std::thread(HelperThread).detach();
    }
    NSA_ASSIGN_OR_RETURN(const int64_t resumed, StartStep());
    step_ = resumed;
    v1::WorkerRecord started;
    started.mutable_started()->set_pid(getpid());
    started.mutable_started()->set_resumed_step(resumed);
    if (resumed > 0) started.mutable_started()->set_resumed_from(CheckpointPath(resumed).string());
    started.mutable_started()->set_parameters(1000);
    started.mutable_started()->set_device("fake");
    NSA_RETURN_IF_ERROR(journal_->Append(started));
    return TrainLoop();
  }

 private:
  const v1::TrainSpec& train() const { return launch_.spec().train(); }
  int64_t steps() const { return train().has_steps() ? train().steps() : 10; }

  v1::ControlReply Answer(const v1::ControlRequest& request) {
    v1::ControlReply reply;
    reply.set_step(step_);
    if (request.has_stop()) SetStop(request.stop());
    if (request.has_profile()) reply.set_error(Profile(request.profile()));
    return reply;
  }

  std::string Profile(const v1::ProfileRequest& request) {
    const std::string how = behaviour_.Text("profile", "none");
    if (how == "refuse") return "profile: rank 0 records another trace (x); try again";
    if (how != "file" || ++profile_requests_ < 2) return "";
    std::string bytes(600'000, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i >> 7);
    return std::string(WriteFileAtomically(dir_.profile(request.id()), bytes).message());
  }

  void SetStop(const v1::StopRequest& stop) {
    if (stop.mode() < stop_.mode) return;
    stop_.mode = stop.mode();
    stop_.after_step = stop.mode() == v1::STOP_MODE_AT_STEP ? stop.at_step() : 0;
  }

  // Rank 0 chooses the checkpoint and tells the others through the rendezvous folder.
  absl::StatusOr<int64_t> StartStep() {
    const fs::path chosen = fs::path(launch_.rendezvous_dir()) / "start-step";
    const bool alone = launch_.world_size() <= 1 || launch_.rendezvous_dir().empty();
    if (alone || launch_.rank() == 0) {
      const int64_t newest = NewestCheckpoint();
      if (!alone) NSA_RETURN_IF_ERROR(WriteFileAtomically(chosen, absl::StrCat(newest)));
      return newest;
    }
    page_.SetPhase(Phase::kWaitingForPeers);
    for (int i = 0; i < 3000; ++i) {
      const auto text = ReadWholeFile(chosen);
      int64_t step = 0;
      if (text.ok() && absl::SimpleAtoi(*text, &step)) return step;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return absl::DeadlineExceededError("rank 0 did not come");
  }

  fs::path CheckpointPath(int64_t step) const {
    return fs::path(train().out_dir()) / "checkpoints" / absl::StrFormat("step-%08d", step);
  }

  int64_t NewestCheckpoint() const {
    int64_t newest = 0;
    std::error_code error;
    for (const auto& entry :
         fs::directory_iterator(fs::path(train().out_dir()) / "checkpoints", error)) {
      int64_t step = 0;
      const std::string name = entry.path().filename().string();
      if (name.rfind("step-", 0) == 0 && absl::SimpleAtoi(name.substr(5), &step) &&
          fs::exists(entry.path() / "fake")) {
        newest = std::max(newest, step);
      }
    }
    return newest;
  }

  absl::Status SaveCheckpoint() {
    page_.SetPhase(Phase::kCheckpoint);
    const int64_t step = step_;
    if (launch_.rank() != 0 || train().out_dir().empty() || step == saved_) return absl::OkStatus();
    std::error_code error;
    fs::create_directories(CheckpointPath(step), error);
    NSA_RETURN_IF_ERROR(WriteFileAtomically(CheckpointPath(step) / "fake", absl::StrCat(step)));
    saved_ = step;
    v1::WorkerRecord record;
    record.mutable_checkpoint()->set_step(step);
    record.mutable_checkpoint()->set_path(CheckpointPath(step).string());
    record.mutable_checkpoint()->set_bytes(static_cast<int64_t>(absl::StrCat(step).size()));
    return journal_->Append(record);
  }

  absl::StatusOr<int> TrainLoop() {
    // The run resumes at or after the step at which it should stop.
    if (step_ > 0 && stop_.mode == v1::STOP_MODE_AT_STEP && step_ >= stop_.after_step) {
      return Finish(v1::OUTCOME_STOPPED, "STOPPED_AT_STEP");
    }
    while (step_ < steps()) {
      NSA_RETURN_IF_ERROR(TrainStep(step_ + 1));
      ++step_;
      if (!PeersKeepUp()) return Finish(v1::OUTCOME_FAILED, "PEER_LOST");
      if (train().save_every() > 0 && step_ % train().save_every() == 0) {
        NSA_RETURN_IF_ERROR(SaveCheckpoint());
      }
      if (behaviour_.FaultAt("exit_at_step", step_)) return ExitAsAsked();
      if (StopNow()) {
        NSA_RETURN_IF_ERROR(SaveCheckpoint());
        const bool exact = stop_.mode == v1::STOP_MODE_AT_STEP;
        return Finish(v1::OUTCOME_STOPPED, exact ? "STOPPED_AT_STEP" : "STOPPED");
      }
    }
    NSA_RETURN_IF_ERROR(SaveCheckpoint());
    return Finish(v1::OUTCOME_COMPLETED, "COMPLETED");
  }

  // Waits until every other rank has done this step too. Returns false when one is gone.
  bool PeersKeepUp() const {
    for (int peer = 0; peer < launch_.world_size(); ++peer) {
      if (peer == launch_.rank() || launch_.rendezvous_dir().empty()) continue;
      const RunDir dir = {dir_.path.parent_path() / absl::StrFormat("rank-%04d", peer)};
      while (true) {
        const auto status = ReadStatusPage(dir.status());
        if (status.ok() && status->step >= step_) break;
        if (status.ok() && !IdentityOf(static_cast<pid_t>(status->pid)).ok()) return false;
        absl::SleepFor(absl::Microseconds(200));
      }
    }
    return true;
  }

  bool StopNow() {
    const timespec no_wait = {};
    sigset_t terminate;
    sigemptyset(&terminate);
    sigaddset(&terminate, SIGTERM);
    if (sigtimedwait(&terminate, nullptr, &no_wait) == SIGTERM) {
      stop_.mode = v1::STOP_MODE_GRACEFUL;
      stop_.after_step = 0;
    }
    if (behaviour_.Text("ignore_stop", "") == "1" && behaviour_.OnThisRank()) return false;
    const bool alone = launch_.world_size() <= 1 || launch_.rendezvous_dir().empty();
    if (alone || stop_.mode == v1::STOP_MODE_AT_STEP) return step_ >= stop_.after_step;
    return step_ >= AgreedStop();
  }

  // The step after which all ranks stop. Rank 0 chooses it two steps ahead, since another rank may
  // be one step ahead of it.
  int64_t AgreedStop() const {
    const fs::path file = fs::path(launch_.rendezvous_dir()) / "stop-after";
    int64_t agreed = INT64_MAX;
    const auto text = ReadWholeFile(file);
    if (text.ok() && absl::SimpleAtoi(*text, &agreed)) return agreed;
    if (launch_.rank() == 0 && step_ >= stop_.after_step) {
      WriteFileAtomically(file, absl::StrCat(step_ + 2)).IgnoreError();
    }
    return INT64_MAX;
  }

  // Waits until the test lets the run continue, or a stop is requested.
  void Hold() const {
    while (stop_.mode == v1::STOP_MODE_UNSPECIFIED &&
           !fs::exists(fs::path(train().out_dir()) / "go")) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  [[gnu::noinline]] absl::Status TrainStep(int64_t step) {
    if (behaviour_.Number("hold_at_step", -1) == step) Hold();
    const absl::Time start = absl::Now();
    page_.SetPhase(Phase::kForward);
    page_.SetLayer(static_cast<int32_t>(step % 4));
    page_.SetKernel("fake_attention");
    if (behaviour_.FaultAt("crash_at_step", step)) Crash();
    if (behaviour_.FaultAt("hang_at_step", step)) HangInCollective();
    absl::SleepFor(absl::Milliseconds(behaviour_.Number("step_ms", 5)));
    WriteLog(step);
    page_.SetLayer(-1);
    v1::WorkerRecord record;
    v1::StepRecord* out = record.mutable_step();
    out->set_step(step);
    out->set_loss(5.5 / (1 + 0.01 * static_cast<double>(step)) +
                  0.01 * std::sin(static_cast<double>(step)));
    out->set_learning_rate(1e-3);
    out->set_grad_norm(1);
    out->set_tokens(static_cast<int64_t>(train().batch_size()) * train().seq_len());
    out->set_total_tokens(out->tokens() * step);
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    out->set_tokens_per_second(static_cast<double>(out->tokens()) / seconds);
    out->mutable_times()->set_step_seconds(seconds);
    out->set_data_source(launch_.spec().data().source());
    NSA_RETURN_IF_ERROR(journal_->Append(record));
    // After the record, so that once all ranks show a step, all have reported it.
    page_.SetStep(step);
    if (train().eval_every() > 0 && step % train().eval_every() == 0) {
      v1::WorkerRecord eval;
      eval.mutable_eval()->set_step(step);
      eval.mutable_eval()->set_loss(out->loss() + 0.05);
      return journal_->Append(eval);
    }
    return absl::OkStatus();
  }

  void WriteLog(int64_t step) const {
    int64_t left = behaviour_.Number("log_bytes", 0);
    for (int64_t line = 0; left > 0; ++line) {
      std::string text = absl::StrFormat("step %d line %d ", step, line);
      text.resize(static_cast<size_t>(std::min<int64_t>(left, 100)) - 1, '.');
      text += '\n';
      std::fwrite(text.data(), 1, text.size(), stdout);
      left -= static_cast<int64_t>(text.size());
    }
    std::fflush(stdout);
  }

  void Crash() const {
    const rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    const int number = static_cast<int>(behaviour_.Number("crash_signal", SIGSEGV));
    signal(number, SIG_DFL);
    raise(number);
  }

  [[gnu::noinline]] void HangInCollective() {
    page_.SetPhase(Phase::kReduce);
    page_.EnterCollective("all_reduce");
    WaitForEver();
    asm volatile("");
  }

  absl::StatusOr<int> ExitAsAsked() {
    const std::string outcome = behaviour_.Text("exit_outcome", "failed");
    const std::string reason = behaviour_.Text("exit_reason", "FAKE");
    if (outcome == "completed") return Finish(v1::OUTCOME_COMPLETED, reason);
    if (outcome == "stopped") return Finish(v1::OUTCOME_STOPPED, reason);
    if (outcome == "failed_final") return Finish(v1::OUTCOME_FAILED_FINAL, reason);
    return Finish(v1::OUTCOME_FAILED, reason);
  }

  absl::StatusOr<int> Finish(v1::Outcome outcome, const std::string& reason) {
    page_.SetPhase(Phase::kFinished);
    v1::WorkerRecord record;
    record.mutable_finished()->set_outcome(outcome);
    record.mutable_finished()->set_reason(reason);
    record.mutable_finished()->set_text(absl::StrCat("fake worker: ", reason));
    record.mutable_finished()->set_step(step_);
    NSA_RETURN_IF_ERROR(journal_->Append(record));
    switch (outcome) {
      case v1::OUTCOME_FAILED:
        return 1;
      case v1::OUTCOME_FAILED_FINAL:
        return 3;
      default:
        return 0;
    }
  }

  const RunDir dir_;
  const v1::WorkerLaunch launch_;
  const Behaviour behaviour_;
  StatusPage page_;
  std::unique_ptr<JournalWriter> journal_;
  Stop stop_;
  std::atomic<int64_t> step_ = 0;
  int profile_requests_ = 0;  // used by the control socket's thread only
  int64_t saved_ = 0;
};

absl::StatusOr<int> Main(const RunDir& dir) {
  NSA_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(dir.launch()));
  v1::WorkerLaunch launch;
  if (!launch.ParseFromString(bytes)) return absl::DataLossError("launch.pb holds no launch");
  const Behaviour behaviour(launch);
  if (behaviour.Text("fail_start", "") == "1" && behaviour.OnThisRank()) {
    std::fprintf(stderr, "fake_worker: asked to fail\n");
    return kBadUsage;
  }
  if (behaviour.Text("stall_start", "") == "1" && behaviour.OnThisRank())
    absl::SleepFor(absl::Hours(1));
  if (behaviour.Text("print_environment", "") == "1") {
    for (char** variable = environ; *variable != nullptr; ++variable) std::puts(*variable);
    std::fflush(stdout);
  }
  return Worker(dir, launch).Run();
}

}  // namespace
}  // namespace nsa::fake

int main(int argc, char** argv) {
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  sigset_t terminate;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &terminate, nullptr);
  if (argc != 3 || std::string(argv[1]) != "--run-dir") {
    std::fprintf(stderr, "usage: fake_worker --run-dir DIR\n");
    return nsa::fake::kBadUsage;
  }
  const absl::StatusOr<int> code = nsa::fake::Main({argv[2]});
  if (!code.ok()) std::fprintf(stderr, "fake_worker: %s\n", code.status().ToString().c_str());
  std::fflush(nullptr);
  _exit(code.ok() ? *code : 1);  // Does not wait for the helper threads.
}
