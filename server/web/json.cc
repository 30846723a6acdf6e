#include "server/web/json.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clean_text.h"
#include "common/base/limits.h"
#include "common/estimate/estimate.h"
#include "common/estimate/run_time.h"
#include "common/estimate/state_title.h"
#include "common/job/data/data_files.h"
#include "common/job/known.h"
#include "common/job/load.h"
#include "common/record/json_number.h"
#include "common/rpc/cordon_text.h"
#include "google/protobuf/util/json_util.h"
#include "server/decide/health.h"
#include "server/decide/job_event.h"
#include "server/decide/lifecycle.h"
#include "server/decide/problem/problems.h"

namespace nsa::server {
namespace {

constexpr int64_t kNanosPerMillisecond = 1'000'000;
constexpr auto Number = record::JsonOrNull<Json>;
// Enough for a curve; a float has no more.
constexpr int kDigits = 7;

Json Millis(int64_t unix_nanos) {
  return unix_nanos > 0 ? Json(unix_nanos / kNanosPerMillisecond) : Json();
}

// The float as the shortest decimal that the page can show, so that replies stay small.
Json Short(float value, bool measured) {
  if (!measured || !std::isfinite(value)) return {};
  if (value == 0) return 0;
  const double scale =
      std::pow(10.0, kDigits - 1 - std::floor(std::log10(std::abs(static_cast<double>(value)))));
  return std::isfinite(scale) ? Json(std::round(value * scale) / scale) : Json(0);
}

// As a job file. A comment above it names what a job of another version has and this version cannot
// write.
std::string SpecText(const v1::JobSpec& spec) {
  const absl::Status known = CheckKnown(spec, "spec");
  return absl::StrCat(known.ok() ? "" : absl::StrCat("# ", known.message(), "\n"), ToYaml(spec));
}

std::string DeviceWord(v1::Device device) {
  if (device == v1::DEVICE_CUDA) return "cuda";
  return device == v1::DEVICE_CPU ? "cpu" : "auto";
}

// Null for a job that belongs to no sweep.
Json SweepJson(const v1::JobSpec& spec) {
  if (!spec.has_sweep()) return {};
  Json halve_at = Json::array();
  for (const int64_t step : spec.sweep().halve_at()) halve_at.push_back(step);
  return {{"name", spec.sweep().name()},
          {"jobs", spec.sweep().jobs()},
          {"index", spec.sweep().index()},
          {"halve_at", std::move(halve_at)}};
}

Json StopJson(const v1::StopRequest& stop) {
  switch (stop.mode()) {
    case v1::STOP_MODE_AT_STEP:
      return {{"mode", "at_step"}, {"at_step", stop.at_step()}};
    case v1::STOP_MODE_GRACEFUL:
      return {{"mode", "graceful"}};
    case v1::STOP_MODE_NOW:
      return {{"mode", "now"}};
    default:
      return {};
  }
}

Json FindingJson(const v1::Finding& finding) {
  return {{"rule", finding.rule()},
          {"field", finding.field()},
          {"problem", finding.problem()},
          {"fix", finding.fix()}};
}

// What keeps GPUs of a machine from being used; empty if nothing does.
std::string ProblemOf(const v1::NodeInfo& info) {
  for (const v1::GpuInfo& gpu : info.gpus()) {
    if (!gpu.fault().empty()) {
      return absl::StrCat(gpu.name(), " ", gpu.uuid(), " gets no ranks: ", gpu.fault());
    }
  }
  return info.cuda_problem();
}

Json SpecJson(const v1::JobSpec& spec) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(spec, &text, options).ok()) return {};
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

float Shown(const record::Quantity& quantity, const v1::CurveBucket& bucket, int entry) {
  if (quantity.keep == record::Keep::kGreatest) return bucket.greatest(entry);
  if (quantity.keep == record::Keep::kLeast) return bucket.least(entry);
  return bucket.mean(entry);
}

Json PathsJson(const google::protobuf::RepeatedPtrField<std::string>& paths) {
  return std::vector<std::string>(paths.begin(), paths.end());
}

// The sources of data.mix with what they have given so far.
Json SourcesJson(const v1::Job& job) {
  const auto& known = job.progress().sources();
  Json sources = Json::array();
  for (const v1::MixSource& mix : job.spec().data().mix()) {
    const auto found = std::ranges::find(known, mix.name(), &v1::SourceProgress::name);
    const v1::SourceProgress source = found == known.end() ? v1::SourceProgress() : *found;
    sources.push_back({{"name", mix.name()},
                       {"weight", mix.weight()},
                       {"paths", PathsJson(mix.path())},
                       {"rows", source.rows()},
                       {"epoch", source.epoch()},
                       {"loss", source.has_loss() ? Number(source.loss()) : Json()}});
  }
  return sources;
}

Json ValSetsJson(const v1::Job& job) {
  const auto& known = job.progress().val_sets();
  const auto& files = job.spec().data().val();
  Json sets = Json::array();
  for (const auto& [name, path] : std::map<std::string, std::string>(files.begin(), files.end())) {
    const auto set = std::ranges::find(known, name, &v1::NamedLoss::name);
    const bool measured = set != known.end();
    sets.push_back({{"name", name},
                    {"paths", Json::array({path})},
                    {"tokens", measured ? Json(set->tokens()) : Json()},
                    {"loss", measured ? Number(set->loss()) : Json()}});
  }
  return sets;
}

}  // namespace

absl::StatusOr<Json> ParseBody(const std::string& body) {
  if (body.empty()) return Json::object();
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("body: not a JSON object");
  return json;
}

std::string Text(const Json& json) {
  return ShownJson(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

namespace {

// The run time until the job's ranks were started, to which the page adds what passes since; null
// before the first start.
Json RunSecondsJson(const v1::Job& job) {
  const int64_t since = job.running_since_unix_nanos();
  const int64_t until = since != 0 ? since : job.end_unix_nanos();
  const double seconds = RunSeconds(job, absl::FromUnixNanos(until));
  return seconds >= 0 ? Number(seconds) : Json();
}

// The mean of the newest steps: a single one says little. Null before the first step and while the
// newest one is not finite.
Json LossJson(const v1::JobProgress& progress) {
  if (progress.step() == 0 || !std::isfinite(progress.loss())) return {};
  return Number(progress.recent_loss() > 0 ? progress.recent_loss() : progress.loss());
}

const char* LevelWord(v1::JobHealth::Level level) {
  if (level == v1::JobHealth::LEVEL_BAD) return "bad";
  return level == v1::JobHealth::LEVEL_WARNING ? "warning" : "note";
}

const char* ActionWord(v1::Remedy::Action action) {
  switch (action) {
    case v1::Remedy::ACTION_STOP:
      return "stop";
    case v1::Remedy::ACTION_RESUME:
      return "resume";
    case v1::Remedy::ACTION_CLONE:
      return "clone";
    case v1::Remedy::ACTION_LOG:
      return "log";
    case v1::Remedy::ACTION_STACKS:
      return "stacks";
    case v1::Remedy::ACTION_CHECKPOINTS:
      return "checkpoints";
    case v1::Remedy::ACTION_NODES:
      return "nodes";
    case v1::Remedy::ACTION_EVENTS:
      return "events";
    case v1::Remedy::ACTION_MUTE:
      return "mute";
    default:
      return "";
  }
}

Json RemedyJson(const v1::Remedy& remedy) {
  Json json = {{"action", ActionWord(remedy.action())},
               {"text", remedy.text()},
               {"command", remedy.command()}};
  if (remedy.action() == v1::Remedy::ACTION_LOG) json["rank"] = remedy.rank();
  if (remedy.set().empty()) return json;
  json["set"] = std::map<std::string, std::string>(remedy.set().begin(), remedy.set().end());
  return json;
}

Json MutesJson(const v1::Job& job) {
  Json mutes = Json::array();
  for (const v1::Mute& mute : job.mutes()) {
    mutes.push_back(
        {{"problem", mute.problem()}, {"who", mute.who()}, {"time", Millis(mute.unix_nanos())}});
  }
  return mutes;
}

}  // namespace

Json ProblemJson(const v1::Problem& problem) {
  Json actions = Json::array();
  for (const v1::Remedy& remedy : problem.remedies()) actions.push_back(RemedyJson(remedy));
  return {{"word", problem.word()},
          {"level", LevelWord(problem.level())},
          {"cause", problem.cause()},
          {"evidence", problem.evidence()},
          {"since_step", problem.since_step() > 0 ? Json(problem.since_step()) : Json()},
          {"since", Millis(problem.since_unix_nanos())},
          {"muted", problem.muted()},
          {"actions", std::move(actions)}};
}

Json ProblemsJson(const v1::Job& job) {
  Json problems = Json::array();
  for (const v1::Problem& problem : job.problems()) problems.push_back(ProblemJson(problem));
  return problems;
}

Json RowJson(const v1::Job& job, int64_t now_unix_nanos) {
  const v1::JobProgress& progress = job.progress();
  const Health health = HealthOf(job, now_unix_nanos);
  Json row = {
      {"id", job.id()},
      {"name", job.name()},
      {"state", StateName(job.state())},
      {"title", StateTitle(job)},
      {"reason", job.reason()},
      {"message", job.message()},
      {"health",
       {{"level", HealthWord(health.level)},
        {"state", health.state},
        {"why", health.why},
        {"words", health.words}}},
      {"step", progress.step()},
      {"steps", progress.total_steps()},
      {"eta_seconds", progress.eta_seconds() >= 0 ? Number(progress.eta_seconds()) : Json()},
      {"loss", LossJson(progress)},
      {"nonfinite", progress.step() > 0 && !std::isfinite(progress.loss())},
      {"val_nonfinite", progress.val_step() > 0 && !std::isfinite(progress.val_loss())},
      {"val_loss", progress.val_step() > 0 ? Number(progress.val_loss()) : Json()},
      {"val_step", progress.val_step()},
      {"tokens_per_second", Number(progress.tokens_per_second())},
      {"total_tokens", progress.total_tokens()},
      {"submitted", Millis(job.submit_unix_nanos())},
      {"started", Millis(job.start_unix_nanos())},
      {"ended", Millis(job.end_unix_nanos())},
      {"run_seconds", RunSecondsJson(job)},
      {"running_since", Millis(job.running_since_unix_nanos())},
      {"next_start", Millis(job.next_start_unix_nanos())},
      {"restarts", job.restarts()},
      {"generation", job.generation()},
      {"queue_position", job.queue_position()},
      {"ranks", job.spec().resources().gpus()},
      {"device", DeviceWord(job.spec().runtime().device())},
      {"checkpoint_step", progress.checkpoint_step()},
      {"owner", job.owner()},
      {"sweep", SweepJson(job.spec())},
      {"stop", StopJson(job.stop())}};
  Json labels = Json::object();
  for (const auto& [name, value] : job.spec().labels()) labels[name] = value;
  row["labels"] = std::move(labels);
  row["problems"] = ProblemsJson(job);
  row["needs_you"] = NeedsYou(job, absl::FromUnixNanos(now_unix_nanos));
  row["mutes"] = MutesJson(job);
  return row;
}

Json JobJson(const v1::StoredJob& stored, const v1::Job& view, double peak_flops,
             int64_t now_unix_nanos) {
  Json json = RowJson(view, now_unix_nanos);
  Json ranks = Json::array();
  for (const v1::RankStatus& rank : view.ranks()) {
    ranks.push_back({{"rank", rank.rank()},
                     {"node", rank.node()},
                     {"pid", rank.pid()},
                     {"state", rank.state()},
                     {"step", rank.step()},
                     {"phase", rank.phase()},
                     {"note", rank.note()},
                     {"error", rank.telemetry_error()}});
  }
  json["rank_status"] = std::move(ranks);
  Json waivers = Json::object();
  for (const auto& [rule, reason] : view.waivers()) waivers[rule] = reason;
  json["waivers"] = std::move(waivers);
  Json warnings = Json::array();
  for (const v1::Finding& finding : view.warnings()) warnings.push_back(FindingJson(finding));
  json["warnings"] = std::move(warnings);
  const v1::JobProgress& progress = view.progress();
  for (const record::Quantity& quantity : record::kQuantities) {
    if (quantity.newest != nullptr) json[quantity.name] = Number(quantity.newest(progress));
  }
  json["checkpoint_time"] = Millis(progress.checkpoint_unix_nanos());
  json["checkpoint_error"] = progress.checkpoint_error();
  json["productive_seconds"] = Number(progress.productive_seconds());
  json["sources"] = SourcesJson(view);
  json["val_sets"] = ValSetsJson(view);
  json["null_rows"] = progress.corpus().null_rows();
  json["empty_files"] = progress.corpus().empty_files();
  json["data_warnings"] = Json::array();
  for (const v1::DataWarning& warning : progress.corpus().warnings()) {
    json["data_warnings"].push_back(WarningText(warning));
  }
  json["state_since"] = Millis(stored.state_unix_nanos());
  json["config"] = SpecJson(view.spec());
  json["config_text"] = SpecText(view.spec());
  json["config_hash"] = JobHash(view.spec());
  json["out_dir"] = view.spec().train().out_dir();
  json["flops_per_token"] = FlopsPerToken(view.spec());
  json["peak_flops"] = peak_flops;
  return json;
}

Json NodeJson(const v1::Node& node, const std::map<std::string, std::string>& names) {
  Json jobs = Json::array();
  for (const std::string& id : node.job_ids()) {
    const auto name = names.find(id);
    jobs.push_back({{"id", id}, {"name", name == names.end() ? id : name->second}});
  }
  Json gpus = Json::array();
  for (const v1::GpuInfo& gpu : node.info().gpus()) {
    gpus.push_back(
        {{"name", gpu.name()},
         {"memory_bytes", gpu.memory_bytes()},
         {"used_bytes", gpu.memory_bytes() - gpu.free_bytes()},
         {"use", gpu.has_utilization_ratio() ? Number(gpu.utilization_ratio()) : Json()},
         {"celsius", gpu.has_temperature_celsius() ? Number(gpu.temperature_celsius()) : Json()},
         {"watts", gpu.has_power_watts() ? Number(gpu.power_watts()) : Json()}});
  }
  return {{"name", node.info().name()},
          {"state", node.state()},
          {"cordon", CordonWord(node)},
          {"cordon_text", node.has_cordon() ? CordonText(node.cordon()) : ""},
          {"heartbeat", Millis(node.heartbeat_unix_nanos())},
          {"cores", node.info().cores()},
          {"cpu_slots", node.info().cpu_slots()},
          {"cpu_slots_used", node.cpu_slots_used()},
          {"gpus_used", node.gpus_used()},
          {"memory_bytes", node.info().memory_bytes()},
          {"used_memory_bytes", node.info().memory_bytes() - node.info().free_memory_bytes()},
          {"gpus", std::move(gpus)},
          {"problem", ProblemOf(node.info())},
          {"jobs", std::move(jobs)}};
}

Json EventJson(const v1::JobEvent& event) {
  return {{"sequence", event.sequence()},
          {"job", event.job_id()},
          {"time", Millis(event.unix_nanos())},
          {"reason", event.reason()},
          {"text", CutText(event.text(), limits::kReportedTextBytes)},
          {"severity", SeverityName(event.severity())},
          {"state", StateName(event.state())},
          {"generation", event.generation()},
          {"rank", event.rank()}};
}

Json CheckpointJson(const v1::CheckpointInfo& checkpoint) {
  return {{"step", checkpoint.step()},
          {"path", checkpoint.path()},
          {"bytes", checkpoint.bytes()},
          {"time", Millis(checkpoint.unix_nanos())},
          {"val_loss", checkpoint.val_loss() > 0 ? Number(checkpoint.val_loss()) : Json()},
          {"pinned", checkpoint.pinned()},
          {"error", checkpoint.error()}};
}

Json LayersJson(const std::vector<v1::CurveBucket>& buckets) {
  int entries = 0;
  Json step = Json::array();
  for (const v1::CurveBucket& bucket : buckets) {
    entries = std::max(entries, bucket.count_size());
    step.push_back(bucket.last_step());
  }
  const int layers = entries / static_cast<int>(kLayerValueCount);
  Json values = Json::object();
  for (size_t i = 0; i < kLayerValueCount; ++i) {
    Json rows = Json::array();
    bool any = false;
    for (int layer = 0; layer < layers; ++layer) {
      const int entry = layer * static_cast<int>(kLayerValueCount) + static_cast<int>(i);
      Json row = Json::array();
      for (const v1::CurveBucket& bucket : buckets) {
        const bool measured = entry < bucket.count_size() && bucket.count(entry) > 0;
        any = any || measured;
        row.push_back(
            measured ? Short(Shown(*record::kCurves<record::Of::kLayer>[i], bucket, entry), true)
                     : Json());
      }
      rows.push_back(std::move(row));
    }
    if (any) values[std::string(kLayerValues[i])] = std::move(rows);
  }
  return {{"width", buckets.empty() ? 1 : buckets.front().width()},
          {"layers", layers},
          {"step", std::move(step)},
          {"values", std::move(values)}};
}

Json ValSetCurvesJson(const std::vector<v1::WorkerRecord>& records) {
  Json sets = Json::object();
  for (const v1::WorkerRecord& record : records) {
    for (const v1::NamedLoss& set : record.eval().sets()) {
      Json& curve = sets[set.name()];
      curve["step"].push_back(record.eval().step());
      curve["time"].push_back(record.unix_nanos() / kNanosPerMillisecond);
      curve["loss"].push_back(Number(set.loss()));
    }
  }
  return sets;
}

Json EvalsJson(const std::vector<v1::WorkerRecord>& records) {
  Json step = Json::array();
  Json time = Json::array();
  Json loss = Json::array();
  for (const v1::WorkerRecord& record : records) {
    step.push_back(record.eval().step());
    time.push_back(record.unix_nanos() / kNanosPerMillisecond);
    loss.push_back(Number(record.eval().loss()));
  }
  if (records.empty()) return Json::object();
  return {{"validation", {{"step", step}, {"time", time}, {"loss", loss}}}};
}

Json SamplesJson(const JobStore::Samples& samples) {
  Json texts = Json::array();
  for (const v1::WorkerRecord& record : samples.records) {
    const v1::SampleRecord& sample = record.sample();
    texts.push_back({{"prompt", CleanText(sample.prompt())},
                     {"text", CleanText(sample.text())},
                     {"tokens", sample.tokens()},
                     {"seconds", Number(sample.seconds())},
                     {"time", record.unix_nanos() / kNanosPerMillisecond},
                     {"error", sample.error()}});
  }
  return {{"steps", samples.steps}, {"step", samples.step}, {"samples", std::move(texts)}};
}

}  // namespace nsa::server
