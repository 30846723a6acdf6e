#include "server/act/edit/apply_differences.h"

#include "absl/strings/str_format.h"
#include "common/job/labels.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/util/message_differencer.h"

namespace nsa::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::util::MessageDifferencer;

// A message with this field of `from` alone.
v1::JobSpec Only(const v1::JobSpec& from, const FieldDescriptor* field) {
  v1::JobSpec only = from;
  const auto* const reflection = v1::JobSpec::GetReflection();
  for (int i = 0; i < v1::JobSpec::descriptor()->field_count(); ++i) {
    const FieldDescriptor* const other = v1::JobSpec::descriptor()->field(i);
    if (other != field) reflection->ClearField(&only, other);
  }
  return only;
}

}  // namespace

absl::Status ApplyDifferences(const v1::JobSpec& before, const v1::JobSpec& after,
                              v1::JobSpec* spec) {
  for (int i = 0; i < v1::JobSpec::descriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = v1::JobSpec::descriptor()->field(i);
    if (field->number() == v1::JobSpec::kLabelsFieldNumber) continue;
    const v1::JobSpec wanted = Only(after, field);
    if (MessageDifferencer::Equals(Only(before, field), wanted)) continue;
    v1::JobSpec::GetReflection()->ClearField(spec, field);
    spec->MergeFrom(wanted);
  }
  auto& labels = *spec->mutable_labels();
  for (const auto& [key, value] : after.labels()) {
    const auto had = before.labels().find(key);
    if (had == before.labels().end() || had->second != value) labels[key] = value;
  }
  if (labels.size() <= kMostLabels) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "labels: the job would have %d (at most %d); remove some", labels.size(), kMostLabels));
}

}  // namespace nsa::server
