// The setup before the first step.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/job_file.h"
#include "common/base/log.h"
#include "common/base/reason.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/estimate/estimate.h"
#include "common/estimate/passes.h"
#include "common/job/data/url_policy.h"
#include "common/job/load.h"
#include "common/preflight/fork.h"
#include "common/run/rank_address.h"
#include "kernels/cuda/device.h"
#include "worker/train/comm/nccl_library.h"
#include "worker/train/data/mix.h"
#include "worker/train/gpu/machine.h"
#include "worker/train/model/finite.h"
#include "worker/train/step/ranks/context_ranks.h"
#include "worker/train/step/ranks/hub_commits.h"
#include "worker/train/step/ranks/same_data.h"
#include "worker/train/step/ranks/work_apart.h"
#include "worker/train/step/resume.h"
#include "worker/train/step/stored_checkpoint.h"
#include "worker/train/step/trainer.h"

namespace nsa::train {
namespace {

v1::WorkerEvent Event(Reason reason, std::string text, v1::Severity severity) {
  v1::WorkerEvent event;
  event.set_reason(Word(reason));
  event.set_text(std::move(text));
  event.set_severity(severity);
  return event;
}

// Checks that the job may start from a checkpoint of another out_dir.
absl::Status CheckOrigin(const v1::CheckpointState& state, const v1::JobSpec& spec) {
  const std::optional<ForkProblem> problem = CheckFork(state, spec);
  if (!problem.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(problem->what, "; ", problem->fix));
}

// Whether both jobs, given the same data, use the same documents for validation.
bool SameValidation(const v1::DataSpec& a, const v1::DataSpec& b) {
  if (a.val_path_size() != b.val_path_size()) return false;
  return a.val_path_size() > 0 || a.val_fraction() == b.val_fraction();
}

// Whether both jobs take their sequences from their sources in the same turns.
bool SameMixture(const v1::DataSpec& a, const v1::DataSpec& b) {
  if (a.mix_size() != b.mix_size()) return false;
  if (a.mix().empty()) return true;
  const auto schedule_of = [](const v1::DataSpec& data) {
    std::vector<double> weights;
    for (const v1::MixSource& source : data.mix()) weights.push_back(source.weight());
    return MixSchedule(weights);
  };
  const MixSchedule before = schedule_of(a), after = schedule_of(b);
  for (int32_t source = 0; source < before.sources(); ++source) {
    if (before.share(source) != after.share(source)) return false;
  }
  return true;
}

int64_t ValidationRows(const v1::TrainSpec& train) {
  return int64_t{train.eval_batches()} * train.batch_size();
}

void ForgetValidations(v1::CheckpointState* state) {
  state->clear_val_loss();
  state->clear_val_step();
  state->clear_best_val_loss();
  state->clear_best_val_step();
}

absl::Status CheckLaunch(const v1::WorkerLaunch& launch) {
  const v1::JobSpec& spec = launch.spec();
  if (launch.rank() < 0 || launch.rank() >= launch.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("rank: ", launch.rank(), " (0 to ",
                                                   launch.world_size() - 1,
                                                   "); correct --rank or --world"));
  }
  NSA_RETURN_IF_ERROR(CheckShare(spec, launch.world_size()));
  const bool cuda = spec.runtime().device() == v1::DEVICE_CUDA;
  const bool bf16 = spec.runtime().precision() == v1::PRECISION_BF16;
  if (cuda && !cuda::BuiltWithCuda()) {
    return absl::InvalidArgumentError(
        "runtime.device: cuda (this worker has the CPU only); start nsa-worker-cuda, or write "
        "device: cpu");
  }
  if (cuda && !bf16) {
    return absl::InvalidArgumentError(
        "runtime.precision: fp32 (bf16 on a GPU); write precision: bf16");
  }
  if (!cuda && bf16) {
    return absl::InvalidArgumentError(
        "runtime.precision: bf16 (fp32 on the CPU); write precision: fp32");
  }
  if (spec.train().out_dir().empty()) {
    return absl::InvalidArgumentError("train.out_dir: empty; name a folder for what is trained");
  }
  return absl::OkStatus();
}

absl::Status StoppedWhileReading() {
  return WithReason(
      absl::CancelledError("stopped as asked while the data was read, before the first step"),
      Reason::kStopped);
}

}  // namespace

Trainer::Trainer(TrainerOptions options)
    : options_(std::move(options)),
      launch_(options_.launch),
      spec_(launch_.spec()),
      train_(spec_.train()),
      layout_(spec_),
      mix_shares_(spec_.data(), ContextOf(spec_)),
      guards_(std::in_place, spec_, /*consecutive_nonfinite=*/0),
      profiler_({.page = &page_,
                 .rank = launch_.rank(),
                 .run_dir = options_.run_dir,
                 .file = options_.profile_file,
                 .now = [this] { return absl::ToInt64Nanoseconds(options_.clock->Monotonic()); },
                 .unix_now = [this] { return absl::ToUnixNanos(options_.clock->Wall()); }}) {}

Trainer::~Trainer() = default;

absl::Status Trainer::SetUp() {
  NSA_RETURN_IF_ERROR(CheckLaunch(launch_));
  // Before the control socket is opened, because requests that arrive over it are newer.
  if (launch_.has_stop()) NSA_RETURN_IF_ERROR(stop_.Request(launch_.stop()));
  NSA_RETURN_IF_ERROR(OpenRunDir());
  if (launch_.rank_address().empty() && train_.checkpoint_url().empty()) {
    NSA_RETURN_IF_ERROR(CheckPublishedCheckpoints(launch_));
  }
  NSA_RETURN_IF_ERROR(OpenOutDir());
  NSA_RETURN_IF_ERROR(ConnectRanks());
  NSA_RETURN_IF_ERROR(AgreeOnData());
  const absl::Status read = OpenData(/*fingerprint=*/"");
  if (ReasonOf(read) == Reason::kStopped) out_dir_ = Folder();  // it is not claimed yet
  NSA_RETURN_IF_ERROR(read);
  // Before out_dir is claimed.
  NSA_RETURN_IF_ERROR(CloseOutDirUnlessOk(CompareData(launch_, *data_, comm_.get())));
  NSA_RETURN_IF_ERROR(OpenExecutor());
  OpenProfiler();
  NSA_ASSIGN_OR_RETURN(out_dir_ranks_, FindOutDirRanks(launch_, out_dir_, comm_.get()));
  NSA_RETURN_IF_ERROR(Resume());
  NSA_RETURN_IF_ERROR(AgreeOnAlgorithms());
  ReportNotes();
  NSA_RETURN_IF_ERROR(LockOutDir());  // before its files are opened
  NSA_RETURN_IF_ERROR(OpenReporter(step()));
  ReportStart();
  return OpenUploader();
}

absl::Status Trainer::OpenRunDir() {
  if (!options_.run_dir) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(page_, StatusPage::Create(options_.run_dir->status(), launch_.rank(),
                                                 launch_.world_size(), launch_.generation()));
  const auto answer = [this](const v1::ControlRequest& request) {
    v1::ControlReply reply;
    if (request.has_stop()) reply.set_error(std::string(RequestStop(request.stop()).message()));
    if (request.has_profile()) {
      reply.set_error(std::string(RequestProfile(request.profile()).message()));
    }
    reply.set_step(step());
    return reply;
  };
  NSA_ASSIGN_OR_RETURN(control_, ControlServer::Start(options_.run_dir->control(), answer));
  return absl::OkStatus();
}

// Opens out_dir once. Everything is written to this folder, even if its path leads elsewhere later.
absl::Status Trainer::OpenOutDir() {
  NSA_RETURN_IF_ERROR(
      Annotate(CheckJobPath(std::filesystem::path(train_.out_dir())), "train.out_dir"));
  absl::StatusOr<Folder> out_dir = Folder::Make(std::filesystem::path(train_.out_dir()));
  if (!out_dir.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("train.out_dir: ", out_dir.status().message(), "; make it writable"));
  }
  out_dir_ = *std::move(out_dir);
  return absl::OkStatus();
}

// The first rank that has this out_dir takes its lock for all of them; the others write nothing in
// it before that. When it fails here, its connections close, which ends the other ranks' wait.
absl::Status Trainer::LockOutDir() {
  const bool first = out_dir_ranks_.index == 0;
  if (first) NSA_RETURN_IF_ERROR(OpenCheckpoints());
  NSA_RETURN_IF_ERROR(comm_->Barrier("out_dir"));
  return first ? absl::OkStatus() : OpenCheckpoints();
}

// Closes out_dir unless `status` is OK. It may belong to another job, so nothing is written into
// it, not even why this run failed.
absl::Status Trainer::CloseOutDirUnlessOk(const absl::Status& status) {
  if (!status.ok()) out_dir_ = Folder();
  return status;
}

// Of branches of the Hub all ranks must read the same commits.
absl::Status Trainer::AgreeOnData() {
  if (!ReadsHubBranches(spec_.data())) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(AgreedCommits agreed, AgreeOnHubCommits(launch_, comm_.get()));
  hub_commits_ = std::move(agreed.commits);
  for (const std::string& text : agreed.moved) {
    early_events_.push_back(Event(Reason::kDataMoved, text, v1::SEVERITY_WARNING));
  }
  return absl::OkStatus();
}

// Once, of a new run; as severe as preflight is about it.
void Trainer::ReportNotes() {
  if (launch_.rank() != 0 || step() > 0) return;
  const bool production = spec_.preflight().policy() == v1::PREFLIGHT_POLICY_PRODUCTION;
  for (const auto& [reason, text] : data_->info().notes) {
    early_events_.push_back(
        Event(reason, text, production ? v1::SEVERITY_WARNING : v1::SEVERITY_INFO));
  }
}

absl::StatusOr<std::unique_ptr<DataLoader>> Trainer::LoadData(const std::string& fingerprint) {
  page_.SetPhase(Phase::kData);
  const auto on_fallback = [this](const std::string& why) {
    const v1::WorkerEvent event = Event(Reason::kFallback, why, v1::SEVERITY_WARNING);
    reporter_ == nullptr ? early_events_.push_back(event) : reporter_->Event(event);
  };
  // A stop in the launch was known before the start: such a run does one step.
  const bool known = launch_.stop().mode() == v1::STOP_MODE_GRACEFUL;
  NSA_ASSIGN_OR_RETURN(const TokenCacheOptions cache, TokenCacheFromEnvironment());
  return DataLoader::Open(
      {.spec = spec_,
       .rank = launch_.rank(),
       .world_size = launch_.world_size(),
       .context = ContextOf(spec_),
       .vocab = VocabOf(spec_),
       .allowed_urls = {launch_.allowed_urls().begin(), launch_.allowed_urls().end()},
       .hub_commits = hub_commits_,
       .cache = cache,
       .fingerprint = fingerprint,
       .on_fallback = on_fallback,
       .on_progress = [this] { page_.Touch(); },
       .cancelled = [this, known] { return peer_lost_ || (!known && stop_.stop_after() == 0); }});
}

// Reads the data, for as long as that takes each rank; without a fingerprint this rank keeps what
// it has. Ends all ranks if one was stopped while it read.
absl::Status Trainer::OpenData(const std::optional<std::string>& fingerprint) {
  double stopped = 0;
  NSA_RETURN_IF_ERROR(WorkApart("data", comm_.get(), &peer_lost_, [&]() -> absl::Status {
    if (fingerprint.has_value()) {
      data_ = nullptr;  // not both in memory
      absl::StatusOr<std::unique_ptr<DataLoader>> data = LoadData(*fingerprint);
      if (ReasonOf(data.status()) != Reason::kStopped) {
        NSA_ASSIGN_OR_RETURN(data_, std::move(data));
      } else if (!peer_lost_) {
        stopped = 1;  // the other ranks learn it below
      }
    }
    if (launch_.world_size() > 1) page_.SetPhase(Phase::kWaitingForPeers);
    return absl::OkStatus();
  }));
  NSA_RETURN_IF_ERROR(comm_->AllReduce("data", Reduce::kMax, std::span<double>(&stopped, 1)));
  return stopped == 0 ? absl::OkStatus() : StoppedWhileReading();
}

absl::Status Trainer::ConnectRanks() {
  threads_ = SetThreads(launch_.cpu_threads(), launch_.world_size());
  if (launch_.world_size() == 1) {
    comm_ = SingleRank();
  } else {
    page_.SetPhase(Phase::kWaitingForPeers);
    NSA_ASSIGN_OR_RETURN(comm_, ConnectTcp({.rank = launch_.rank(),
                                            .world_size = launch_.world_size(),
                                            .rendezvous_dir = launch_.rendezvous_dir(),
                                            .generation = launch_.generation(),
                                            .listen = options_.listen,
                                            .timeout = PeerTimeout(absl::Seconds(
                                                spec_.restart().hang_timeout_seconds()))}));
  }
  comm_->set_status_page(&page_);
  return absl::OkStatus();
}

absl::Status Trainer::OpenExecutor() {
  page_.SetPhase(Phase::kStarting);
  const ExecutorOptions options = {.launch = &launch_,
                                   .layout = &layout_,
                                   .comm = comm_.get(),
                                   .page = &page_,
                                   .clock = options_.clock,
                                   .threads = threads_,
                                   .time_kernels = options_.time_kernels};
  const bool cuda = spec_.runtime().device() == v1::DEVICE_CUDA;
  executor_ = cuda ? MakeGpuExecutor(options) : MakeCpuExecutor(options);
  NSA_RETURN_IF_ERROR(executor_->Open());
  if (const std::string why = executor_->SlowPath(); !why.empty()) {
    early_events_.push_back(Event(Reason::kFallback, why, v1::SEVERITY_WARNING));
  }
  return absl::OkStatus();
}

void Trainer::OpenProfiler() {
  std::vector<MemoryGauge> gauges = {{"host memory", ResidentBytes}};
  if (spec_.runtime().device() != v1::DEVICE_CUDA) {
    profiler_.SetDevice(std::move(gauges), nullptr, nullptr);
  } else {
    const absl::StatusOr<cuda::DeviceInfo> device = cuda::ReadDevice();
    const int64_t total = device.ok() ? device->total_bytes : 0;
    gauges.push_back({.name = "GPU memory in use",
                      .bytes = [total] { return total - cuda::FreeBytes().value_or(total); },
                      .every_nanos = 10'000'000});
    const char* const library = std::getenv("NSA_CUPTI_LIBRARY");
    profiler_.SetDevice(
        std::move(gauges),
        [file = std::string(library == nullptr ? "" : library)] { return OpenGpuRecorder(file); },
        [this] { executor_->CaptureAgain(); });
  }
  if (options_.profile_file.empty()) return;
  v1::ProfileRequest request;
  request.set_id("by-hand");
  request.set_steps(3);
  RequestProfile(request).IgnoreError();  // it is valid
}

// Adapts the state of a checkpoint that belongs to another job. Its count of non-finite steps is
// dropped. Its position in the data is kept if the data and the turns of a mixture's sources are
// the same; its validation losses are kept if document_mask is the same, too. Returns a text that
// says what differs.
std::string Trainer::AdaptForkedState() {
  const std::string differences = ForkDifferences(state_.spec(), spec_);
  state_.set_consecutive_nonfinite(0);
  const v1::JobSpec& origin = state_.spec();
  const bool same_data =
      state_.data().fingerprint() == data_->info().fingerprint &&
      origin.train().seq_len() == train_.seq_len() && origin.train().seed() == train_.seed() &&
      SameValidation(origin.data(), spec_.data()) && SameMixture(origin.data(), spec_.data()) &&
      data_->Seek(state_.data()).ok();
  if (!same_data || origin.data().document_mask() != spec_.data().document_mask()) {
    ForgetValidations(&state_);
  }
  return absl::StrCat("; another job's, which differs in ", differences,
                      same_data ? "" : "; the data begins anew");
}

absl::Status Trainer::Resume() {
  page_.SetPhase(Phase::kLoadingCheckpoint);
  if (out_dir_ranks_.index == 0) {
    NSA_RETURN_IF_ERROR(CloseOutDirUnlessOk(ClaimOutDir(launch_, out_dir_)));
  }
  NSA_ASSIGN_OR_RETURN(const std::string downloaded,
                       DownloadIfMissing(launch_, out_dir_, comm_.get()));
  if (!downloaded.empty()) {
    early_events_.push_back(Event(Reason::kCheckpointDownloaded, downloaded, v1::SEVERITY_INFO));
  }
  NSA_ASSIGN_OR_RETURN(const ResumePoint point, ChooseResume(launch_, out_dir_ranks_, comm_.get()));
  for (const std::string& problem : point.rejected) {
    early_events_.push_back(Event(Reason::kCheckpointCorrupt, problem, v1::SEVERITY_ERROR));
  }
  HostState host(&executor_->state(), &layout_);
  if (point.checkpoint.empty()) {
    Initialize(train_.seed(), host.parameters());
  } else if (point.weights_only) {
    NSA_RETURN_IF_ERROR(LoadWeights(point, &host));
  } else {
    NSA_RETURN_IF_ERROR(LoadFrom(point, &host));
  }
  NSA_RETURN_IF_ERROR(host.Commit(executor_->exec()));
  step_.store(state_.step());
  page_.SetStep(state_.step());
  guards_.emplace(spec_, state_.consecutive_nonfinite(), state_.step() + 1);
  state_.set_job_id(launch_.job_id());
  state_.set_job_hash(JobHash(spec_));
  *state_.mutable_spec() = spec_;
  return absl::OkStatus();
}

// Begins with the weights of a checkpoint: step 0, moments of zero, the first row of the data.
absl::Status Trainer::LoadWeights(const ResumePoint& point, HostState* host) {
  NSA_ASSIGN_OR_RETURN(const v1::CheckpointState origin, ReadStateOf(point, comm_.get()));
  if (const std::optional<ForkProblem> problem = CheckWeights(origin, spec_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("restart.init: ", problem->what, "; ", problem->fix));
  }
  const RestoreTarget target = {.layout = &layout_,
                                .parameters = host->parameters()->flat(),
                                .weights = host->parameters()->slice()};
  NSA_RETURN_IF_ERROR(Annotate(LoadFor(point, "", target, comm_.get()).status(), "restart.init"));
  NSA_RETURN_IF_ERROR(Annotate(CheckFinite(*host->parameters()), "restart.init"));
  initialized_from_ = point.checkpoint.string();
  const std::string differences = ForkDifferences(origin.spec(), spec_);
  early_events_.push_back(Event(
      Reason::kInitialized,
      absl::StrFormat("with the weights of step %d: %s; the moments are zero and the data begins "
                      "anew%s",
                      origin.step(), initialized_from_,
                      differences.empty() ? "" : "; its job differs in " + differences),
      v1::SEVERITY_INFO));
  return absl::OkStatus();
}

// Checks that the job may continue from the checkpoint `state` of its own out_dir, which is not
// beyond train.steps: at the last step, a start that was lost before its record ends. If its
// learning rate jumps there, the job must allow it, and an event says so.
absl::Status Trainer::CheckOwnState(const v1::CheckpointState& state) {
  if (const std::optional<ForkProblem> problem = CheckOwn(state, spec_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("train.out_dir: ", train_.out_dir(), " ", problem->what, "; ", problem->fix));
  }
  if (state.step() > train_.steps()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "train.steps: %d (%s has a checkpoint of step %d); raise train.steps to train it further, "
        "or take another train.out_dir to start afresh",
        train_.steps(), train_.out_dir(), state.step()));
  }
  const std::optional<std::string> jump = ScheduleJump(state, spec_);
  if (!jump.has_value()) return absl::OkStatus();
  if (!spec_.restart().allow_new_schedule()) {
    return absl::FailedPreconditionError(
        absl::StrCat(*jump, "; set restart.allow_new_schedule: true if you want that"));
  }
  early_events_.push_back(Event(Reason::kScheduleChanged, *jump, v1::SEVERITY_WARNING));
  return absl::OkStatus();
}

// A checkpoint whose validation documents are those that the hashes alone select goes on with them.
absl::Status Trainer::KeepHeldOut() {
  const CorpusInfo& info = data_->info();
  const std::string& fingerprint = state_.data().fingerprint();
  const bool keeps = fingerprint == info.fingerprint_by_hash && fingerprint != info.fingerprint &&
                     SameValidation(state_.spec().data(), spec_.data());
  NSA_RETURN_IF_ERROR(OpenData(keeps ? std::optional(fingerprint) : std::nullopt));
  page_.SetPhase(Phase::kLoadingCheckpoint);
  return absl::OkStatus();
}

absl::Status Trainer::LoadFrom(const ResumePoint& point, HostState* host) {
  const std::string job_hash = JobHash(spec_);
  const bool own = point.checkpoint.parent_path() == CheckpointsDir(train_.out_dir());
  const absl::StatusOr<v1::CheckpointState> state = ReadStateOf(point, comm_.get());
  if (!state.ok()) return own ? state.status() : Annotate(state.status(), "restart.resume");
  NSA_RETURN_IF_ERROR(own ? CheckOwnState(*state)
                          : Annotate(CheckOrigin(*state, spec_), "restart.resume"));
  const RestoreTarget target = {.layout = &layout_,
                                .parameters = host->parameters()->flat(),
                                .first_moment = host->first_moment()->flat(),
                                .second_moment = host->second_moment()->flat(),
                                .slice = host->first_moment()->slice(),
                                .weights = host->parameters()->slice()};
  NSA_ASSIGN_OR_RETURN(state_, LoadFor(point, own ? job_hash : "", target, comm_.get()));
  NSA_RETURN_IF_ERROR(KeepHeldOut());
  const int64_t rows = ValidationRows(state_.spec().train());
  const std::string differences = state_.job_hash() == job_hash ? "" : AdaptForkedState();
  if (rows != ValidationRows(train_)) ForgetValidations(&state_);  // those are of other rows
  if (differences.empty()) NSA_RETURN_IF_ERROR(Annotate(data_->Seek(state_.data()), "resume"));
  resumed_from_ = point.checkpoint.string();
  early_events_.push_back(
      Event(Reason::kResumed,
            absl::StrFormat("from step %d: %s%s", state_.step(), resumed_from_, differences),
            v1::SEVERITY_INFO));
  const std::string chosen_again = own ? AdoptRecorded(state_, executor_.get()) : "";
  if (!chosen_again.empty()) {
    early_events_.push_back(Event(Reason::kAlgorithmsChanged, chosen_again, v1::SEVERITY_WARNING));
  }
  return absl::OkStatus();
}

// After those of a checkpoint, which rank 0 then passes on.
absl::Status Trainer::AgreeOnAlgorithms() {
  NSA_ASSIGN_OR_RETURN(const std::string differs,
                       AdoptFromRankZero(spec_, executor_.get(), comm_.get()));
  if (!differs.empty() && launch_.rank() == 0) {
    early_events_.push_back(Event(Reason::kAlgorithmsChanged, differs, v1::SEVERITY_WARNING));
  }
  return absl::OkStatus();
}

absl::Status Trainer::OpenReporter(int64_t resumed_step) {
  NSA_ASSIGN_OR_RETURN(
      reporter_, Reporter::Open({.spec = spec_,
                                 .out_dir = out_dir_,
                                 .job_id = launch_.job_id(),
                                 .generation = launch_.generation(),
                                 .rank = launch_.rank(),
                                 .world_size = launch_.world_size(),
                                 .device = DeviceText(),
                                 .nccl_replaced = nccl::ReplacedEnvironment(),
                                 .resumed_step = resumed_step,
                                 .best_val_loss = state_.best_val_loss(),
                                 .best_val_step = state_.best_val_step(),
                                 .journal = options_.run_dir ? options_.run_dir->journal() : ""}));
  for (const v1::WorkerEvent& event : early_events_) reporter_->Event(event);
  early_events_.clear();
  return absl::OkStatus();
}

std::string Trainer::DeviceText() const {
  return executor_ == nullptr ? CpuDescription(threads_) : executor_->Description();
}

void Trainer::ReportStart() {
  v1::WorkerStarted started;
  started.set_pid(getpid());
  started.set_resumed_step(step());
  started.set_resumed_from(resumed_from_);
  started.set_parameters(layout_.count());
  started.set_device(DeviceText());
  started.set_initialized_from(initialized_from_);
  // A generated source has no documents.
  if (data_->info().documents > 0) *started.mutable_corpus() = SummaryOf(data_->info());
  reporter_->Started(started);
}

absl::Status Trainer::OpenCheckpoints() {
  const SnapshotAccess access = executor_->snapshot_access();
  const ModelState& state = executor_->state();
  std::optional<Slice> slice;
  if (state.sharded && out_dir_ranks_.everybody) slice = state.share();
  auto checkpoints = CheckpointWriter::Open(
      {.out_dir = out_dir_,
       .rank = out_dir_ranks_.index,
       .world_size = out_dir_ranks_.count,
       .generation = launch_.generation(),
       .keep = train_.keep_checkpoints(),
       .shard_timeout = PeerTimeout(absl::Seconds(spec_.restart().hang_timeout_seconds())),
       .copy = access.copy,
       .allocate = access.allocate,
       .layout = &layout_,
       .slice = slice,
       .may_delete = [this](int64_t step) { return !uploader_ || uploader_->MayDelete(step); },
       .on_record =
           [this](const v1::CheckpointRecord& record) {
             if (uploader_ && record.error().empty()) uploader_->Published(record.step());
             // Another machine's copy of a checkpoint that rank 0 reports is no second one.
             const bool copy = launch_.rank() != 0 && out_dir_ranks_.index == 0;
             if (!copy || !record.error().empty()) reporter_->Checkpoint(record);
           },
       .on_event = [this](const v1::WorkerEvent& e) { reporter_->Event(e); },
       .before_write = [this] { reporter_->Flush(); }});
  NSA_RETURN_IF_ERROR(CloseOutDirUnlessOk(checkpoints.status()));
  checkpoints_ = *std::move(checkpoints);
  saver_.emplace(SaverOptions{.writer = checkpoints_.get(),
                              .comm = comm_.get(),
                              .page = &page_,
                              .clock = options_.clock,
                              .patience = options_.last_save});
  return absl::OkStatus();
}

// Rank 0 has all files of a checkpoint in its out_dir.
absl::Status Trainer::OpenUploader() {
  const std::string& url = train_.checkpoint_url();
  if (url.empty() || launch_.rank() != 0) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(const UrlPolicy policy, UrlPolicy::Make({launch_.allowed_urls().begin(),
                                                                launch_.allowed_urls().end()}));
  if (!policy.Allows(url)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "train.checkpoint_url: ", url,
        " is not among the coordinator's allowed_urls; take another place, or ask an operator"));
  }
  NSA_ASSIGN_OR_RETURN(Folder checkpoints, out_dir_.MakeFolder(CheckpointsDir("").string()));
  uploader_.emplace(UploaderOptions{
      .url = url,
      .job_id = launch_.job_id(),
      .checkpoints = std::move(checkpoints),
      .keep = train_.keep_checkpoints(),
      .on_record = [this](const v1::UploadRecord& record) { reporter_->Upload(record); },
      .on_event = [this](const v1::WorkerEvent& event) { reporter_->Event(event); }});
  return absl::OkStatus();
}

}  // namespace nsa::train
