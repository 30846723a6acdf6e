#include "common/job/flat_keys.h"

#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/job/enum_words.h"

namespace nsa {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// The shortest decimal that reads back as the same number.
template <typename Float>
std::string Number(Float value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  return std::string(buffer, end);
}

class Flattener {
 public:
  explicit Flattener(UnsetKeys unset) : unset_(unset) {}

  std::vector<FlatKey> Take() { return std::move(keys_); }

  void Fields(const Message& message, const std::string& path) {
    const size_t before = keys_.size();
    for (const FieldDescriptor* field : FieldsOf(message)) {
      Value(message, *field, path.empty() ? field->name() : absl::StrCat(path, ".", field->name()));
    }
    const bool told = keys_.size() > before || path.empty() || unset_ == UnsetKeys::kShown;
    if (!told) Add(path, {.values = {"{}"}});
  }

 private:
  std::vector<const FieldDescriptor*> FieldsOf(const Message& message) const {
    std::vector<const FieldDescriptor*> fields;
    if (unset_ == UnsetKeys::kLeftOut) {
      message.GetReflection()->ListFields(message, &fields);
      return fields;
    }
    for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* const field = message.GetDescriptor()->field(i);
      const bool unset =
          field->has_presence() && !message.GetReflection()->HasField(message, field);
      if (!unset) fields.push_back(field);
    }
    return fields;
  }

  void Value(const Message& message, const FieldDescriptor& field, const std::string& key) {
    const Reflection& reflection = *message.GetReflection();
    const bool section = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (field.is_map()) return Map(message, field, key);
    if (section && !field.is_repeated()) return Fields(reflection.GetMessage(message, &field), key);
    if (!field.is_repeated()) {
      const bool none =
          field.enum_type() != nullptr && reflection.GetEnumValue(message, &field) == 0;
      return Add(key, {.values = {none ? "-" : ScalarText(message, field, -1)}}, &field);
    }
    FlatKey list{.is_list = true};
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      if (section) {
        Fields(reflection.GetRepeatedMessage(message, &field, i), absl::StrCat(key, "[", i, "]"));
      } else {
        list.values.push_back(ScalarText(message, field, i));
      }
    }
    if (!section) Add(key, std::move(list), &field);
  }

  // A message as a value is its only field.
  void Map(const Message& message, const FieldDescriptor& field, const std::string& key) {
    const Reflection& reflection = *message.GetReflection();
    const FieldDescriptor &name = *field.message_type()->map_key(),
                          &value = *field.message_type()->map_value();
    std::map<std::string, const Message*> entries;
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
      entries[ScalarText(entry, name, -1)] = &entry;
    }
    for (const auto& [entry_name, entry] : entries) {
      const std::string entry_key = absl::StrCat(key, ".", entry_name);
      if (value.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        Add(entry_key, {.values = {ScalarText(*entry, value, -1)}}, &value);
        continue;
      }
      const Message& inner = entry->GetReflection()->GetMessage(*entry, &value);
      const FieldDescriptor& only = *inner.GetDescriptor()->field(0);
      const size_t before = keys_.size();
      // What follows a name with dots would not be told from it.
      const bool quoted = only.is_map() && absl::StrContains(entry_name, '.');
      Value(inner, only, quoted ? absl::StrCat(key, ".\"", entry_name, "\"") : entry_key);
      if (keys_.size() == before) Add(entry_key, {.values = {"{}"}});
    }
  }

  void Add(const std::string& key, FlatKey flat, const FieldDescriptor* field = nullptr) {
    flat.key = key;
    flat.is_text = field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    keys_.push_back(std::move(flat));
  }

  const UnsetKeys unset_;
  std::vector<FlatKey> keys_;
};

}  // namespace

std::string ScalarText(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& r = *message.GetReflection();
#define NSA_GET_(Name) \
  (index < 0 ? r.Get##Name(message, &field) : r.GetRepeated##Name(message, &field, index))
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(NSA_GET_(Int32));
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(NSA_GET_(Int64));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(NSA_GET_(UInt32));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(NSA_GET_(UInt64));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return Number(NSA_GET_(Double));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return Number(NSA_GET_(Float));
    case FieldDescriptor::CPPTYPE_BOOL:
      return NSA_GET_(Bool) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumWord(*NSA_GET_(Enum));
    case FieldDescriptor::CPPTYPE_STRING:
      return NSA_GET_(String);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return "";
  }
#undef NSA_GET_
  return "";
}

std::string FlatKey::Text() const {
  return is_list ? absl::StrCat("[", absl::StrJoin(values, ", "), "]") : values.front();
}

std::vector<FlatKey> FlatKeys(const Message& message, UnsetKeys unset) {
  Flattener flattener(unset);
  flattener.Fields(message, "");
  return flattener.Take();
}

}  // namespace nsa
