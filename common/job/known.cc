#include "common/job/known.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/job/enum_words.h"
#include "google/protobuf/unknown_field_set.h"

namespace nsa {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

absl::Status CheckValue(const FieldDescriptor& field, int value, const std::string& path) {
  if (field.enum_type()->FindValueByNumber(value) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: value %d is not known (version %s knows %s); choose one of these, or install a newer "
      "version",
      path, value, kVersion, absl::StrJoin(EnumWords(*field.enum_type()), ", ")));
}

// The name of a field that the schema no longer has; empty if it never had it. A message reserves
// numbers and names in the same order.
std::string RemovedField(const google::protobuf::Descriptor& type, int number) {
  for (int i = 0; i < type.reserved_range_count(); ++i) {
    const auto* range = type.reserved_range(i);
    if (number >= range->start && number < range->end) return type.reserved_name(i);
  }
  return "";
}

bool IsZero(const google::protobuf::UnknownField& field) {
  using google::protobuf::UnknownField;
  return (field.type() == UnknownField::TYPE_VARINT && field.varint() == 0) ||
         (field.type() == UnknownField::TYPE_FIXED64 && field.fixed64() == 0);
}

absl::Status CheckFields(const Message& message, const std::string& path) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i) {
    const auto& field = unknown.field(i);
    const std::string removed = RemovedField(*message.GetDescriptor(), field.number());
    if (removed.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: field number %d is not known (version %s); remove the keys that this version does "
          "not have, or install a newer version",
          path, field.number(), kVersion));
    }
    if (IsZero(field)) continue;  // it was off
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s.%s: is set (version %s no longer has this key); submit a job without it", path, removed,
        kVersion));
  }
  return absl::OkStatus();
}

absl::Status Check(const Message& message, const std::string& path, bool fields_too) {
  if (fields_too) NSA_RETURN_IF_ERROR(CheckFields(message, path));
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool is_enum = field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM;
    if (!is_enum && field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string inner = absl::StrCat(path, path.empty() ? "" : ".", field->name());
    if (!field->is_repeated()) {
      NSA_RETURN_IF_ERROR(is_enum
                              ? CheckValue(*field, reflection.GetEnumValue(message, field), inner)
                              : Check(reflection.GetMessage(message, field), inner, fields_too));
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      const std::string place = absl::StrFormat("%s[%d]", inner, i);
      NSA_RETURN_IF_ERROR(
          is_enum ? CheckValue(*field, reflection.GetRepeatedEnumValue(message, field, i), place)
                  : Check(reflection.GetRepeatedMessage(message, field, i), place, fields_too));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckKnownValues(const Message& message, const std::string& path) {
  return Check(message, path, /*fields_too=*/false);
}

absl::Status CheckKnown(const Message& message, const std::string& path) {
  return Check(message, path, /*fields_too=*/true);
}

}  // namespace nsa
