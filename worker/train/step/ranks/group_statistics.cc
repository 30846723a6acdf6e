#include "worker/train/step/ranks/group_statistics.h"

#include <algorithm>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "common/base/status.h"
#include "google/protobuf/descriptor.h"
#include "worker/train/comm/stop.h"

namespace nsa::train {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// How the values of several ranks become one number.
enum class Rule { kSame, kSum, kMean, kMin, kMax };

Rule RuleOf(const FieldDescriptor& field) {
  const std::string& name = field.name();
  if (name == "layer") return Rule::kSame;
  if (name == "entropy_min") return Rule::kMin;
  if (name == "max_gate_max" || name == "keys_max") return Rule::kMax;
  return field.cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE ? Rule::kMean : Rule::kSum;
}

double Combined(Rule rule, std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  switch (rule) {
    case Rule::kSame:
      return values.front();
    case Rule::kSum:
      return sum;
    case Rule::kMean:
      return sum / static_cast<double>(values.size());
    case Rule::kMin:
      return *std::min_element(values.begin(), values.end());
    case Rule::kMax:
      return *std::max_element(values.begin(), values.end());
  }
  return sum;
}

// Calls visit(message, field, index) for every number that `message` has, index −1 where it is not
// repeated. Numbers without presence count as there even when they are 0, so that messages of the
// same parts have the same numbers.
template <class AnyMessage, class Visit>
void ForEachNumber(AnyMessage* message, const Visit& visit) {
  const Reflection& reflection = *message->GetReflection();
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  for (int f = 0; f < type.field_count(); ++f) {
    const FieldDescriptor* const field = type.field(f);
    if (field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(*message, field); ++i) visit(message, field, i);
    } else if (field->has_presence() && !reflection.HasField(*message, field)) {
      continue;
    } else if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      visit(message, field, -1);
    } else if constexpr (std::is_const_v<AnyMessage>) {
      ForEachNumber(&reflection.GetMessage(*message, field), visit);
    } else {
      ForEachNumber(reflection.MutableMessage(message, field), visit);
    }
  }
}

double Number(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection& reflection = *message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? reflection.GetInt32(message, field)
                 : reflection.GetRepeatedInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(one ? reflection.GetInt64(message, field)
                                     : reflection.GetRepeatedInt64(message, field, index));
    default:
      return one ? reflection.GetDouble(message, field)
                 : reflection.GetRepeatedDouble(message, field, index);
  }
}

void SetNumber(Message* message, const FieldDescriptor* field, int index, double value) {
  const Reflection& reflection = *message->GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32: {
      const auto whole = static_cast<int32_t>(value);
      one ? reflection.SetInt32(message, field, whole)
          : reflection.SetRepeatedInt32(message, field, index, whole);
      return;
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      const auto whole = static_cast<int64_t>(value);
      one ? reflection.SetInt64(message, field, whole)
          : reflection.SetRepeatedInt64(message, field, index, whole);
      return;
    }
    default:
      one ? reflection.SetDouble(message, field, value)
          : reflection.SetRepeatedDouble(message, field, index, value);
  }
}

std::vector<double> NumbersOf(const Message& message) {
  std::vector<double> numbers;
  ForEachNumber(&message, [&](const Message* part, const FieldDescriptor* field, int index) {
    numbers.push_back(Number(*part, field, index));
  });
  return numbers;
}

// Replaces each number of `message` by the ranks' combined value; their values lie `stride` apart.
void Replace(std::span<const double> numbers, size_t stride, Message* message) {
  size_t at = 0;
  ForEachNumber(message, [&](Message* part, const FieldDescriptor* field, int index) {
    std::vector<double> values;
    for (size_t i = at; i < numbers.size(); i += stride) values.push_back(numbers[i]);
    SetNumber(part, field, index, Combined(RuleOf(*field), values));
    ++at;
  });
}

}  // namespace

absl::Status ShareLayers(Comm* comm, int32_t context, v1::StepRecord* record) {
  if (context <= 1) return absl::OkStatus();
  std::vector<double> mine;
  for (const v1::LayerStats& layer : record->layers()) {
    const std::vector<double> numbers = NumbersOf(layer);
    mine.insert(mine.end(), numbers.begin(), numbers.end());
  }
  NSA_ASSIGN_OR_RETURN(const std::vector<double> all, Gather(comm, "layers", mine));
  const size_t first = static_cast<size_t>(comm->rank() / context * context) * mine.size();
  std::span<const double> group =
      std::span(all).subspan(first, mine.size() * static_cast<size_t>(context));
  for (v1::LayerStats& layer : *record->mutable_layers()) {
    const size_t count = NumbersOf(layer).size();
    Replace(group, mine.size(), &layer);
    group = group.subspan(count);
  }
  return absl::OkStatus();
}

}  // namespace nsa::train
