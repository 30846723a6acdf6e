#include "common/preflight/preflight.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/estimate/estimate.h"
#include "common/estimate/memory/memory.h"
#include "common/estimate/sampling.h"
#include "common/estimate/shares.h"
#include "common/preflight/rules.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace nsa {
namespace {

// A long job is production whatever it calls itself. The time counts only if the sizes are in
// order. At a launch the length does not count: the job was judged by it at submit, and must not
// fail at a restart because the machine is slower or the coordinator newer.
v1::PreflightPolicy PolicyOf(const PreflightFacts& facts, bool sizes_good) {
  const v1::JobSpec& spec = facts.spec;
  const bool submits = facts.context.job_id.empty();
  const bool long_run = spec.train().steps() >= kLongRunSteps ||
                        (sizes_good && ExpectedSecondsOfAll(facts) >= kLongRunSeconds);
  const bool production = spec.preflight().policy() == v1::PREFLIGHT_POLICY_PRODUCTION;
  return production || (submits && long_run) ? v1::PREFLIGHT_POLICY_PRODUCTION
                                             : v1::PREFLIGHT_POLICY_EXPERIMENT;
}

// Whether `device: auto` is judged as cuda: where the machine has a GPU. If no machine is known,
// where the job asks for GPUs: with bf16, which the CPU does not have, or with several ranks.
bool TakesGpu(const v1::JobSpec& spec, const MachineView* machine) {
  if (machine != nullptr) return !machine->gpus.empty() && machine->cuda_worker;
  if (spec.runtime().precision() != v1::PRECISION_UNSPECIFIED) {
    return spec.runtime().precision() == v1::PRECISION_BF16;
  }
  return spec.resources().gpus() > 1;
}

constexpr double kMaxLostSeconds = 1800;

// The spec with defaults, device and precision. The default of max_lost_seconds is not among those
// of ApplyDefaults(): it would be sent to workers, and older ones refuse a key that they do not
// know.
v1::JobSpec Decided(v1::JobSpec spec, const MachineView* machine) {
  ApplyDefaults(&spec);
  ResolveDevice(TakesGpu(spec, machine), &spec);
  v1::PreflightSpec* preflight = spec.mutable_preflight();
  if (!preflight->has_max_lost_seconds()) preflight->set_max_lost_seconds(kMaxLostSeconds);
  return spec;
}

// Memory that a rank has for what the estimate counts. On the CPU its text takes a part of it.
int64_t MemoryForState(const PreflightFacts& facts) {
  if (facts.machine() == nullptr) return 0;
  return MemoryOfRank(facts) - (facts.cuda() ? 0 : CorpusMemory(facts));
}

v1::Severity SeverityOf(const PreflightRule& rule, v1::PreflightPolicy policy) {
  return policy == v1::PREFLIGHT_POLICY_PRODUCTION ? rule.production : rule.experiment;
}

std::string WaiverFor(const PreflightRule& rule, const v1::JobSpec& spec) {
  const auto& waivers = spec.preflight().waive();
  const auto waiver = waivers.find(std::string(rule.id));
  if (!rule.waivable || waiver == waivers.end()) return {};
  return std::string(absl::StripAsciiWhitespace(waiver->second));
}

// Compares values of a section with their own limits: the rules whose names end so.
bool ChecksRange(const PreflightRule& rule) { return rule.id.ends_with("_RANGE"); }

// "train.steps" becomes as if the job file did not have it; false if it has not. Of a list or map,
// the whole of it.
bool ClearField(std::string_view path, google::protobuf::Message* message) {
  const size_t end = std::min(path.find_first_of(".["), path.size());
  const google::protobuf::FieldDescriptor* const field =
      message->GetDescriptor()->FindFieldByName(std::string(path.substr(0, end)));
  if (field == nullptr) return false;
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  if (end != path.size() && !field->is_repeated() && field->message_type() != nullptr) {
    return ClearField(path.substr(end + 1), reflection.MutableMessage(message, field));
  }
  const bool there = field->is_repeated() ? reflection.FieldSize(*message, field) > 0
                                          : reflection.HasField(*message, field);
  reflection.ClearField(message, field);
  return there;
}

// The values that are outside their limits, and the job with the defaults in their places.
struct InvalidValues {
  std::set<std::string> fields;
  v1::JobSpec without;
};

InvalidValues FindInvalidValues(const v1::JobSpec& spec, const PreflightFacts& facts,
                                std::span<const PreflightRule> rules) {
  InvalidValues invalid{.without = spec};
  for (const PreflightRule& rule : rules) {
    if (!ChecksRange(rule)) continue;
    for (const Problem& problem : rule.check(facts)) {
      if (ClearField(problem.field, &invalid.without)) invalid.fields.insert(problem.field);
    }
  }
  invalid.without = Decided(std::move(invalid.without), facts.machine());
  return invalid;
}

// Leaves out what else is found of an invalid value, and what follows from one: what the rule does
// not find with the defaults.
void LeaveOutConsequences(const PreflightRule& rule, const InvalidValues& invalid,
                          const PreflightFacts& with_defaults, Problems* problems) {
  if (invalid.fields.empty() || ChecksRange(rule) || problems->empty()) return;
  const Problems lasting = rule.check(with_defaults);
  std::erase_if(*problems, [&](const Problem& problem) {
    return invalid.fields.contains(problem.field) ||
           std::ranges::find(lasting, problem.field, &Problem::field) == lasting.end();
  });
}

void AddFindings(const PreflightRule& rule, const PreflightFacts& facts, Problems problems,
                 v1::PreflightReport* report) {
  const v1::Severity severity = SeverityOf(rule, facts.policy);
  constexpr size_t kMostFindings = 100;  // of one rule
  if (problems.size() > kMostFindings) {
    absl::StrAppend(&problems[kMostFindings - 1].problem, " (and ", problems.size() - kMostFindings,
                    " more like this)");
    problems.resize(kMostFindings);
  }
  for (Problem& problem : problems) {
    v1::Finding* finding = report->add_findings();
    finding->set_rule(std::string(rule.id));
    finding->set_severity(severity);
    finding->set_field(std::move(problem.field));
    finding->set_problem(std::move(problem.problem));
    finding->set_fix(std::move(problem.fix));
    finding->set_waived(WaiverFor(rule, facts.spec));
  }
}

void AddEstimate(const std::string& name, double value, const char* unit,
                 v1::PreflightReport* report) {
  v1::EstimateItem* item = report->add_estimates();
  item->set_name(name);
  item->set_value(value);
  item->set_unit(unit);
}

// The memory that the job will find: on the CPU the machine's, on GPUs that of the last rank's GPU
// (ranks take the GPUs with the most free memory first).
void AddMachine(const PreflightFacts& facts, v1::PreflightReport* report) {
  const MachineView* machine = facts.machine();
  if (machine == nullptr) return;
  std::string name = "host memory";
  int64_t all = machine->memory_bytes, free = machine->free_memory_bytes;
  if (facts.cuda()) {
    if (machine->gpus.empty()) return;
    std::vector<MachineView::Gpu> gpus = machine->gpus;
    std::sort(gpus.begin(), gpus.end(), [](const MachineView::Gpu& a, const MachineView::Gpu& b) {
      return a.free_bytes > b.free_bytes;
    });
    const auto last = std::min(gpus.size(), static_cast<size_t>(facts.ranks_on_machine())) - 1;
    name = absl::StrCat("GPU memory, ", gpus[last].name);
    all = gpus[last].memory_bytes, free = gpus[last].free_bytes;
  }
  AddEstimate(name, static_cast<double>(all), "bytes", report);
  AddEstimate("free memory now", static_cast<double>(free), "bytes", report);
}

void AddEstimates(const PreflightFacts& facts, v1::PreflightReport* report) {
  const v1::JobSpec& spec = facts.spec;
  const auto tokens = static_cast<double>(TokensPerStep(spec));
  const double speed = ExpectedSpeed(facts);
  const auto checkpoint = static_cast<double>(CheckpointBytes(spec));
  AddEstimate("parameters", static_cast<double>(ParameterCount(spec)), "parameters", report);
  const std::vector<MemoryItem> memory = RankMemory(facts);
  for (const MemoryItem& item : memory) {
    AddEstimate(absl::StrCat("memory: ", item.name), static_cast<double>(item.bytes), "bytes",
                report);
  }
  AddEstimate("memory per rank", static_cast<double>(TotalBytes(memory)), "bytes", report);
  if (const int64_t corpus = CorpusMemory(facts); facts.cuda() && corpus > 0) {
    AddEstimate("host memory for the text, per rank", static_cast<double>(corpus), "bytes", report);
  }
  if (facts.cuda()) {
    AddEstimate("host memory for checkpoints, per rank",
                static_cast<double>(SnapshotBytes(spec, 1)), "bytes", report);
  }
  AddMachine(facts, report);
  AddEstimate("one checkpoint", checkpoint, "bytes", report);
  AddEstimate("disk for checkpoints", DiskForCheckpoints(spec), "bytes", report);
  AddEstimate("tokens per step", tokens, "tokens", report);
  AddEstimate(StepsDone(facts) > 0 ? "tokens left in the run" : "tokens in the run",
              tokens * static_cast<double>(StepsLeft(facts)), "tokens", report);
  AddEstimate("operations per token", FlopsPerToken(spec), "flops", report);
  AddEstimate(absl::StrCat("expected speed (", ExpectedSpeedSource(facts), ")"), speed,
              "tokens_per_second", report);
  AddEstimate("expected time", ExpectedSeconds(facts), "seconds", report);
  if (const double samples = SampleSeconds(spec); samples > 0) {
    AddEstimate("samples of a validation", samples, "seconds", report);
  }
  for (v1::EstimateItem& item : LinkEstimates(facts)) *report->add_estimates() = std::move(item);
}

}  // namespace

absl::Status CheckSizes(const v1::JobSpec& spec) {
  const v1::JobSpec decided = Decided(spec, nullptr);
  const PreflightContext context;
  const StartFacts start;
  const PreflightFacts facts{.spec = decided,
                             .context = context,
                             .start = start,
                             .policy = v1::PREFLIGHT_POLICY_EXPERIMENT};
  for (const PreflightRule& rule : AllRules()) {
    if (rule.needs != PreflightRule::kGuardsSizes) continue;
    for (const Problem& problem : rule.check(facts)) {
      return absl::InvalidArgumentError(
          absl::StrCat(problem.field, ": ", problem.problem, "; ", problem.fix));
    }
  }
  return absl::OkStatus();
}

std::vector<PreflightRule> AllRules() {
  std::vector<PreflightRule> rules;
  for (const auto part :
       {RangeRules(), ShapeRules(), NameRules(), RunRules(), AdviceRules(), DataRules(),
        ContentRules(), FilterRules(), MixRules(), CorpusRules(), SampleRules(), QueueRules(),
        MachineRules(), GroupRules(), FewerRules(), LinkRules(), LimitRules(), StartRules()}) {
    rules.insert(rules.end(), part.begin(), part.end());
  }
  return rules;
}

// Main path 2/7: preflight.
v1::PreflightReport Preflight(const v1::JobSpec& spec, const PreflightContext& context) {
  v1::PreflightReport report;
  *report.mutable_spec() = spec;
  ApplyDefaults(report.mutable_spec());
  v1::JobSpec decided = Decided(spec, context.machine);
  const StartFacts start = ReadStart(decided, context);
  PreflightFacts facts{decided, context, start};

  const std::vector<PreflightRule> rules = AllRules();
  const bool sizes_good = std::none_of(rules.begin(), rules.end(), [&](const PreflightRule& rule) {
    return rule.needs == PreflightRule::kGuardsSizes && !rule.check(facts).empty();
  });
  if (sizes_good) ResolveShard(MemoryForState(facts), &decided);
  InvalidValues invalid = FindInvalidValues(spec, facts, rules);
  PreflightFacts with_defaults{.spec = invalid.without,
                               .context = context,
                               .start = start,
                               .paths = facts.paths,
                               .line_samples = facts.line_samples};
  if (sizes_good) ResolveShard(MemoryForState(with_defaults), &invalid.without);
  facts.policy = PolicyOf(with_defaults, sizes_good);
  with_defaults.policy = facts.policy;
  report.set_policy(facts.policy);
  for (const PreflightRule& rule : rules) {
    if (facts.abandoned()) return report;
    if (rule.needs == PreflightRule::kSizes && !sizes_good) continue;
    if (SeverityOf(rule, facts.policy) == v1::SEVERITY_UNSPECIFIED) continue;
    Problems problems = rule.check(facts);
    LeaveOutConsequences(rule, invalid, with_defaults, &problems);
    AddFindings(rule, facts, std::move(problems), &report);
  }
  if (sizes_good) AddEstimates(facts, &report);
  report.set_start(StartText(facts));

  std::stable_sort(
      report.mutable_findings()->begin(), report.mutable_findings()->end(),
      [](const v1::Finding& a, const v1::Finding& b) { return a.severity() > b.severity(); });
  report.set_accepted(std::none_of(
      report.findings().begin(), report.findings().end(), [](const v1::Finding& finding) {
        return finding.severity() == v1::SEVERITY_ERROR && finding.waived().empty();
      }));
  return report;
}

std::vector<RuleInfo> PreflightRules() {
  std::vector<RuleInfo> infos;
  for (const PreflightRule& rule : AllRules()) {
    infos.push_back(
        {std::string(rule.id), std::string(rule.summary), rule.waivable, rule.may_pass});
  }
  return infos;
}

bool MayPassLater(const v1::Finding& finding, const v1::JobSpec& spec, const MachineView& machine) {
  const std::vector<PreflightRule> rules = AllRules();
  const auto rule = std::find_if(rules.begin(), rules.end(),
                                 [&](const PreflightRule& r) { return r.id == finding.rule(); });
  if (rule == rules.end() || rule->may_pass == MayPass::kNo) return false;
  if (rule->may_pass == MayPass::kYes) return true;
  // Without a job id the whole memory of the machine counts.
  const PreflightContext idle = {.machine = &machine, .check_files = true};
  v1::JobSpec decided = Decided(spec, &machine);
  const StartFacts start;  // the rules about memory do not read it
  const PreflightFacts facts{decided, idle, start};
  ResolveShard(MemoryForState(facts), &decided);
  return rule->check(facts).empty();
}

}  // namespace nsa
