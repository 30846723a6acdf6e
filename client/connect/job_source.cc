#include "client/connect/job_source.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/show/human.h"
#include "common/base/count.h"
#include "common/base/current_folder.h"
#include "common/base/status.h"
#include "common/job/assignment.h"
#include "common/preflight/preflight.h"

namespace nsa::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void Overlay(const Message& from, Message* to);

// Puts the entries of a map of messages into `to`. An entry that is there keeps what `from` does
// not set: data.val_where.books.lang=en adds a field to the set.
void OverlayEntries(const Message& from, const FieldDescriptor& map, Message* to) {
  const Descriptor& entry = *map.message_type();
  const FieldDescriptor *key = entry.map_key(), *value = entry.map_value();
  const auto key_of = [&](const Message& one) { return one.GetReflection()->GetString(one, key); };
  const auto value_of = [&](Message* one) {
    return one->GetReflection()->MutableMessage(one, value);
  };
  for (int i = 0; i < from.GetReflection()->FieldSize(from, &map); ++i) {
    const Message& more = from.GetReflection()->GetRepeatedMessage(from, &map, i);
    Message* known = nullptr;
    for (int j = 0; known == nullptr && j < to->GetReflection()->FieldSize(*to, &map); ++j) {
      Message* const one = to->GetReflection()->MutableRepeatedMessage(to, &map, j);
      if (key_of(*one) == key_of(more)) known = one;
    }
    if (known == nullptr) {
      to->GetReflection()->AddMessage(to, &map)->CopyFrom(more);
    } else {
      Overlay(more.GetReflection()->GetMessage(more, value), value_of(known));
    }
  }
}

// Puts every field that is set in `from` into `to`.
void Overlay(const Message& from, Message* to) {
  const Reflection& reflection = *from.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(from, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (!field->is_repeated() && message) {
      Overlay(reflection.GetMessage(from, field), reflection.MutableMessage(to, field));
      continue;
    }
    if (field->is_map() && field->message_type()->map_value()->message_type() != nullptr) {
      OverlayEntries(from, *field, to);
      continue;
    }
    // MergeFrom appends to lists and sets entries of maps.
    if (field->is_repeated() && !field->is_map()) reflection.ClearField(to, field);
    const std::unique_ptr<Message> only(from.New());
    only->CopyFrom(from);
    for (const FieldDescriptor* other : fields) {
      if (other != field) reflection.ClearField(only.get(), other);
    }
    to->MergeFrom(*only);
  }
}

// Clears the lists and texts that `set` names. One that is empty leaves no trace in a message, so
// Overlay() does not see it.
void ClearNamed(const SourceMap& set, Message* to) {
  for (const auto& each : set) {
    Message* within = to;
    const FieldDescriptor* field = nullptr;
    for (const absl::string_view name : absl::StrSplit(each.first, '.')) {
      if (field != nullptr) within = within->GetReflection()->MutableMessage(within, field);
      field = within->GetDescriptor()->FindFieldByName(std::string(name));
      if (field == nullptr || field->is_repeated() || field->message_type() == nullptr) break;
    }
    const bool may_be_empty = field != nullptr && !field->is_map() && !field->has_presence();
    if (may_be_empty) within->GetReflection()->ClearField(within, field);
  }
}

// The loader's mistakes, one per line, and a last line that counts them.
absl::Status Mistakes(const std::string& file, const absl::Status& loaded) {
  const size_t mistakes = LoadErrorsOf(loaded).size();
  if (mistakes == 0) return absl::InvalidArgumentError(loaded.message());
  return absl::InvalidArgumentError(absl::StrCat(loaded.message(), "\n", ShownName(file), ": ",
                                                 Count(static_cast<int64_t>(mistakes), "mistake"),
                                                 "; correct the file and try again"));
}

// The fields of `set` have no place in the file, and must not get that of the section around them.
// The section itself keeps its place.
void DropPlaces(const SourceMap& set, SourceMap* places) {
  for (const auto& each : set) {
    const std::string& field = each.first;
    const auto within = [&](const std::string& other, char after) {
      return other.size() > field.size() && other.starts_with(field) &&
             other[field.size()] == after;
    };
    const bool section =
        std::ranges::any_of(set, [&](const auto& s) { return within(s.first, '.'); });
    if (section && places->contains(field)) continue;
    (*places)[field] = SourcePlace();
    std::erase_if(*places, [&](const auto& place) { return within(place.first, '['); });
  }
}

absl::Status BadSet(const std::string& flag, const std::string& assignment,
                    absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", assignment, ": ", what));
}

}  // namespace

absl::StatusOr<SourceMap> ApplySet(const std::string& assignment, v1::JobSpec* spec,
                                   const std::string& flag) {
  const absl::StatusOr<Assignment> parsed = ParseAssignment(assignment);
  if (!parsed.ok()) return BadSet(flag, assignment, parsed.status().message());
  v1::JobSpec overlay;
  absl::StatusOr<LoadResult> loaded = LoadAssignment(*parsed, flag, &overlay);
  if (!loaded.ok()) {
    // Without the place, which is one in our own tree.
    std::vector<std::string> mistakes;
    for (const LoadError& error : LoadErrorsOf(loaded.status())) {
      mistakes.push_back(absl::StrCat(error.field, ": ", error.text));
    }
    return BadSet(flag, assignment, absl::StrJoin(mistakes, "; "));
  }
  ClearNamed(loaded->places, spec);
  Overlay(overlay, spec);
  return std::move(loaded->places);
}

absl::Status ApplySets(const std::vector<std::string>& assignments, v1::JobSpec* spec,
                       const std::string& flag) {
  if (assignments.empty()) return absl::OkStatus();
  for (const std::string& assignment : assignments) {
    NSA_RETURN_IF_ERROR(ApplySet(assignment, spec, flag).status());
  }
  NSA_ASSIGN_OR_RETURN(const std::filesystem::path here, CurrentFolder());
  return PlaceJob("-", here, spec);
}

absl::StatusOr<JobFile> LoadJobSource(const std::string& file,
                                      const std::vector<std::string>& sets) {
  JobFile job;
  absl::StatusOr<LoadResult> loaded = LoadJobYaml(file, &job.spec);
  if (!loaded.ok()) return Mistakes(file, loaded.status());
  job.source = *std::move(loaded);
  for (const std::string& assignment : sets) {
    NSA_ASSIGN_OR_RETURN(const SourceMap set, ApplySet(assignment, &job.spec));
    DropPlaces(set, &job.source.places);
  }
  NSA_ASSIGN_OR_RETURN(const std::filesystem::path here, CurrentFolder());
  NSA_RETURN_IF_ERROR(PlaceJob(file, here, &job.spec));
  return job;
}

std::string ShownName(const std::string& file) { return file == "-" ? "<stdin>" : file; }

void NoteLegacyKeys(Session& session, const std::string& file, const JobFile& job) {
  for (const LegacyKey& key : job.source.legacy) {
    session.Note(absl::StrCat(ShownName(file), ":", key.place.line, ":", key.place.column,
                              ": warning: ", key.field, ": ", key.why));
  }
}

std::string EstimateText(const v1::EstimateItem& item) {
  std::string value;
  if (item.unit() == "bytes") {
    value = HumanBytes(static_cast<int64_t>(item.value()));
  } else if (item.unit() == "seconds") {
    value = HumanDuration(item.value());
  } else if (item.unit() == "tokens_per_second") {
    value = HumanCount(item.value()) + " tok/s";
  } else {
    value = HumanCount(item.value());
  }
  return absl::StrCat(item.name(), " ", value);
}

std::string RefusalText(const std::string& file, const v1::PreflightReport& report) {
  const std::vector<RuleInfo> rules = PreflightRules();
  int errors = 0;
  std::set<std::string> waivable;
  for (const v1::Finding& finding : report.findings()) {
    if (finding.severity() != v1::SEVERITY_ERROR || !finding.waived().empty()) continue;
    ++errors;
    const auto rule = std::ranges::find(rules, finding.rule(), &RuleInfo::id);
    if (rule != rules.end() && rule->waivable) waivable.insert(finding.rule());
  }
  std::string text = absl::StrCat(
      ShownName(file), ": refused by preflight: ", Count(errors, "error"), "; change the job");
  if (waivable.empty()) return text;
  return absl::StrCat(text, ", or waive ", absl::StrJoin(waivable, ", "),
                      " with a reason under preflight.waive");
}

}  // namespace nsa::client
