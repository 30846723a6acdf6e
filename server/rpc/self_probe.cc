#include "server/rpc/self_probe.h"

#include <utility>

#include "common/base/clock.h"
#include "common/base/thread_name.h"
#include "common/rpc/health.h"
#include "common/rpc/rpc.h"
#include "spdlog/spdlog.h"

namespace nsa::server {
namespace {

std::shared_ptr<grpc::Channel> NewConnection(const std::string& address) {
  grpc::ChannelArguments arguments;
  // A new connection each time: an existing one keeps working when no other is accepted any more.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

Probed JudgeProbe(const Probing& probing) {
  if (probing.answered) return Probed::kAnswered;
  if (probing.refused) return Probed::kSilent;
  return 2 * probing.pulses * kProbePulse < probing.took ? Probed::kStarved : Probed::kSilent;
}

// One question on a thread of its own. The destructor cancels it: its deadline may not end it, see
// common/rpc/call_watch.h.
struct SelfProbe::Question {
  explicit Question(const Options& options)
      : channel(NewConnection(options.address)), context(MakeContext(options.patience, "")) {
    thread = std::thread([this] {
      NameThread("self-question");
      const grpc::Status status = AskHealth(channel.get(), context.get());
      const MutexLock lock(&mutex);
      ended = true;
      code = status.error_code();
      changed.Signal();
    });
  }
  ~Question() {
    context->TryCancel();
    thread.join();
  }

  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<grpc::ClientContext> context;
  Mutex mutex;
  CondVar changed;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  grpc::StatusCode code ABSL_GUARDED_BY(mutex) = grpc::StatusCode::DEADLINE_EXCEEDED;
  std::thread thread;
};

SelfProbe::SelfProbe(Options options) : options_(std::move(options)), thread_([this] { Loop(); }) {}

SelfProbe::~SelfProbe() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    woken_.SignalAll();
  }
  thread_.join();
}

void SelfProbe::Loop() {
  NameThread("self-probe");
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (!stopping_) woken_.WaitFor(&mutex_, options_.every);
      if (stopping_) return;
    }
    Note(JudgeProbe(Probe()));
  }
}

void SelfProbe::Note(Probed probed) {
  if (probed != Probed::kSilent) {
    if (probed == Probed::kAnswered) failures_ = 0;
    if (probed == Probed::kStarved) {
      spdlog::warn(
          "self probe: no answer from {} within {} s, but the probe hardly ran either: "
          "this machine has too much to do",
          options_.address, absl::ToDoubleSeconds(options_.patience));
    }
    return options_.alive();
  }
  spdlog::warn("self probe: no answer from {} within {} s ({} in a row)", options_.address,
               absl::ToDoubleSeconds(options_.patience), failures_ + 1);
  if (++failures_ == options_.failures) options_.unreachable();
}

Probing SelfProbe::Probe() const {
  Question question(options_);
  const absl::Duration start = RealClock().Monotonic();
  Probing probing;
  const MutexLock lock(&question.mutex);
  while (!question.ended && probing.took < options_.patience) {
    question.changed.WaitFor(&question.mutex, kProbePulse);
    ++probing.pulses;
    probing.took = RealClock().Monotonic() - start;
  }
  probing.answered = question.code == grpc::StatusCode::OK;
  probing.refused = !probing.answered && question.code != grpc::StatusCode::DEADLINE_EXCEEDED;
  return probing;
}

}  // namespace nsa::server
