// Rules about names, paths and waivers.
#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/limits.h"
#include "common/job/data/data_files.h"
#include "common/job/data/url.h"
#include "common/job/did_you_mean.h"
#include "common/job/labels.h"
#include "common/job/require.h"
#include "common/preflight/rules.h"

namespace nsa {
namespace {

bool IsLowerOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

constexpr char kNameForm[] =
    "'%s' (a lower-case letter, then at most 62 lower-case letters, digits, - or _, not ending in "
    "- "
    "or _)";

// ^[a-z]([-_a-z0-9]{0,61}[a-z0-9])?$
bool IsName(const std::string& name) {
  if (name.empty() || name.size() > limits::kJobNameBytes || name[0] < 'a' || name[0] > 'z')
    return false;
  return IsLowerOrDigit(name.back()) && std::all_of(name.begin(), name.end(), [](char c) {
           return IsLowerOrDigit(c) || c == '-' || c == '_';
         });
}

// Text from the user for a message: at most 64 bytes, control characters replaced by '?'.
std::string ShownName(const std::string& text) {
  std::string shown;
  for (const char c : CutText(text, 64)) {
    const auto u = static_cast<unsigned char>(c);
    shown += u < 0x20 || u == 0x7F ? '?' : c;
  }
  return shown;
}

Problems NameInvalid(const PreflightFacts& facts) {
  const std::string& name = facts.spec.name();
  if (IsName(name)) return {};
  return {{"name", absl::StrFormat(kNameForm, ShownName(name)), "use a name like m7c-first-run"}};
}

Problems LabelsInvalid(const PreflightFacts& facts) {
  Problems problems;
  if (facts.spec.labels_size() > kMostLabels) {
    problems.push_back({"labels",
                        absl::StrFormat("%d (at most %d)", facts.spec.labels_size(), kMostLabels),
                        "use fewer labels"});
  }
  for (const auto& [key, value] : facts.spec.labels()) {
    const std::string fault = LabelFault(key, value);
    if (fault.empty()) continue;
    const size_t end = fault.rfind("; ");
    problems.push_back(
        {absl::StrCat("labels.", ShownName(key)), fault.substr(0, end), fault.substr(end + 2)});
  }
  return problems;
}

Problems RequireInvalid(const PreflightFacts& facts) {
  const auto& require = facts.spec.resources().require();
  if (require.size() > kMostRequired) {
    return {{"resources.require", absl::StrFormat("%d (at most %d)", require.size(), kMostRequired),
             "require less"}};
  }
  Problems problems;
  for (const auto& [key, value] : require) {
    const std::string fault = RequirementFault(key, value);
    if (fault.empty()) continue;
    const size_t end = fault.rfind("; ");
    problems.push_back({absl::StrCat("resources.require.", ShownName(key)), fault.substr(0, end),
                        fault.substr(end + 2)});
  }
  return problems;
}

// What is wrong with a step of sweep.halve_at, or empty.
std::string HalvingFault(const v1::TrainSpec& train, int64_t before, int64_t step) {
  if (step <= before) return absl::StrFormat("%d after %d (ascending, from 1)", step, before);
  if (step >= train.steps()) {
    return absl::StrFormat("%d (before the last step, %d)", step, train.steps());
  }
  if (train.eval_every() <= 0 || step % train.eval_every() != 0) {
    return absl::StrFormat("%d (must be a multiple of train.eval_every = %d): no validation there",
                           step, train.eval_every());
  }
  return {};
}

Problems SweepInvalid(const PreflightFacts& facts) {
  if (!facts.spec.has_sweep()) return {};
  const v1::SweepSpec& sweep = facts.spec.sweep();
  Problems problems;
  if (!IsName(sweep.name())) {
    problems.push_back({"sweep.name", absl::StrFormat(kNameForm, ShownName(sweep.name())),
                        "use a name like lr-and-gate"});
  }
  if (sweep.jobs() < 2 || sweep.jobs() > 1000) {
    problems.push_back({"sweep.jobs", absl::StrFormat("%d (from 2 to 1000)", sweep.jobs()),
                        "submit the file with `nsactl submit --sweep`, which sets it"});
  } else if (sweep.index() < 0 || sweep.index() >= sweep.jobs()) {
    problems.push_back({"sweep.index",
                        absl::StrFormat("%d (from 0 to %d)", sweep.index(), sweep.jobs() - 1),
                        "submit the file with `nsactl submit --sweep`, which sets it"});
  }
  int64_t before = 0;
  for (int i = 0; i < sweep.halve_at_size(); ++i) {
    std::string fault = HalvingFault(facts.spec.train(), before, sweep.halve_at(i));
    before = sweep.halve_at(i);
    if (fault.empty()) continue;
    problems.push_back({absl::StrFormat("sweep.halve_at[%d]", i), std::move(fault),
                        "choose steps at which the jobs are validated"});
  }
  return problems;
}

// What is wrong with a path, or empty.
std::string PathFault(const std::string& path) {
  if (path.empty()) return "empty (an absolute path)";
  if (path.size() > 4096) return absl::StrFormat("%d characters (at most 4096)", path.size());
  for (const char c : path) {
    const auto u = static_cast<unsigned char>(c);
    if (u < 0x20 || u == 0x7F) return "contains a NUL or control character (none allowed)";
  }
  if (path[0] != '/')
    return absl::StrFormat("'%s' is relative (an absolute path)", ShownName(path));
  for (const std::filesystem::path& part : std::filesystem::path(path)) {
    if (part == "..") return absl::StrFormat("'%s' has .. in it (none allowed)", ShownName(path));
    const std::string name = part.string();
    if (name == "~" || (name.size() > 1 && name[0] == '$')) {
      return absl::StrFormat("'%s' contains %s, which only a shell replaces (none allowed)",
                             ShownName(path), ShownName(name));
    }
    if (name.size() > 255) return "a component has more than 255 bytes (at most 255)";
  }
  return {};
}

Problems PathInvalid(const PreflightFacts& facts) {
  const auto& spec = facts.spec;
  Problems problems;
  const auto check = [&](const std::string& field, const std::string& path) {
    if (std::string fault = PathFault(path); !fault.empty()) {
      problems.push_back(
          {field, std::move(fault), "use an absolute path without .. or control characters"});
    }
  };
  for (const DataFiles& files : AllDataFiles(spec.data())) {
    for (size_t i = 0; i < files.paths.size(); ++i) {
      if (!IsUrl(files.paths[i])) check(files.FieldOf(i), files.paths[i]);  // DATA_URL
    }
  }
  if (spec.data().has_tokenizer_path()) check("data.tokenizer_path", spec.data().tokenizer_path());
  check("train.out_dir", spec.train().out_dir());
  const std::string& resume = spec.restart().resume();
  if (resume.empty() || NamesCheckpoint(spec.restart())) check("restart.resume", resume);
  if (!spec.restart().init().empty()) check("restart.init", spec.restart().init());
  return problems;
}

const PreflightRule* FindRule(std::span<const PreflightRule> rules, std::string_view id) {
  const auto rule =
      std::find_if(rules.begin(), rules.end(), [&](const PreflightRule& r) { return r.id == id; });
  return rule == rules.end() ? nullptr : &*rule;
}

Problems WaiverInvalid(const PreflightFacts& facts) {
  const std::vector<PreflightRule> rules = AllRules();
  std::vector<std::string> ids;
  for (const PreflightRule& rule : rules) ids.emplace_back(rule.id);
  Problems problems;
  for (const auto& [id, reason] : facts.spec.preflight().waive()) {
    const std::string field = absl::StrCat("preflight.waive.", ShownName(id));
    const PreflightRule* rule = FindRule(rules, id);
    if (rule == nullptr) {
      const std::string nearest = Nearest(id, ids);
      problems.push_back({field, absl::StrFormat("'%s' is not the id of a rule", ShownName(id)),
                          nearest.empty() ? "copy the id from a finding"
                                          : absl::StrFormat("did you mean %s?", nearest)});
    } else if (!rule->waivable) {
      problems.push_back(
          {field, "this rule cannot be waived", "remove the waiver and fix the job"});
    } else if (absl::StripAsciiWhitespace(reason).empty()) {
      problems.push_back({field, "no reason (every waiver needs one)",
                          absl::StrFormat("write %s: followed by the reason", id)});
    } else if (reason.size() > 500) {
      problems.push_back({field,
                          absl::StrFormat("a reason of %d characters (at most 500)", reason.size()),
                          "shorten it"});
    }
  }
  return problems;
}

constexpr char kSlurm[] = "slurm";

Problems ProvisionerUnknown(const PreflightFacts& facts) {
  const std::string& wanted = facts.spec.resources().provisioner();
  if (wanted.empty()) return {};
  if (wanted != kSlurm) {
    return {{"resources.provisioner", absl::StrFormat("'%s' (must be slurm)", CutText(wanted, 40)),
             "set provisioner: slurm, or leave it out for machines whose agents are there anyway"}};
  }
  const std::vector<std::string>* known = facts.context.provisioners;
  if (known == nullptr || std::ranges::find(*known, wanted) != known->end()) return {};
  return {{"resources.provisioner",
           absl::StrCat(wanted, " (this coordinator has none: provisioners.slurm)"),
           "set provisioners.slurm in coordinator.yaml (docs/slurm.md), or leave "
           "resources.provisioner out"}};
}

constexpr PreflightRule kNameRules[] = {
    {"NAME_INVALID", "the name of the job is not valid", kError, kError, false, kNothing,
     NameInvalid},
    {"LABELS_INVALID", "too many labels, or labels that are too long", kError, kError, false,
     kNothing, LabelsInvalid},
    {"REQUIRE_INVALID", "a value of `resources.require` is not valid", kError, kError, false,
     kNothing, RequireInvalid},
    {"SWEEP_INVALID", "a value of `sweep` is outside its limits", kError, kError, false, kNothing,
     SweepInvalid},
    {"PATH_INVALID", "a path is relative, has .. or control characters, or is too long", kError,
     kError, false, kNothing, PathInvalid},
    {"PROVISIONER_UNKNOWN", "no such cluster manager, or one that is not configured", kError,
     kError, false, kNothing, ProvisionerUnknown},
    {"WAIVER_INVALID",
     "a waiver has no reason, names an unknown rule, or a rule that cannot be waived", kError,
     kError, false, kNothing, WaiverInvalid},
};

}  // namespace

std::span<const PreflightRule> NameRules() { return kNameRules; }

}  // namespace nsa
