#include "common/job/yaml_message.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/job/enum_words.h"
#include "common/job/legacy_keys.h"
#include "common/job/scalar.h"
#include "common/job/unknown_key.h"

namespace nsa {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Kind = YamlNode::Kind;

std::string Join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : absl::StrCat(path, ".", std::string(key));
}

// Sets one value of a field: Set for a singular one, Add for a repeated one.
struct Target {
  Message* message;
  const FieldDescriptor* field;

  const google::protobuf::Reflection& reflection() const { return *message->GetReflection(); }
#define NSA_PUT_(Name, Type)                         \
  void Put##Name(Type value) const {                 \
    if (field->is_repeated()) {                      \
      reflection().Add##Name(message, field, value); \
    } else {                                         \
      reflection().Set##Name(message, field, value); \
    }                                                \
  }
  NSA_PUT_(Int32, int32_t)
  NSA_PUT_(Int64, int64_t)
  NSA_PUT_(UInt32, uint32_t)
  NSA_PUT_(UInt64, uint64_t)
  NSA_PUT_(Double, double)
  NSA_PUT_(Float, float)
  NSA_PUT_(Bool, bool)
  NSA_PUT_(String, const std::string&)
  NSA_PUT_(EnumValue, int)
#undef NSA_PUT_
};

// Sets the field to the scalar `node`. The error is `what; fix` if it is not a value of the field's
// type.
absl::Status PutScalar(const Target& target, const YamlNode& node) {
  const FieldDescriptor& field = *target.field;
  const auto type = field.cpp_type();
  if (type == FieldDescriptor::CPPTYPE_STRING) {
    if (field.type() == FieldDescriptor::TYPE_BYTES) {
      return absl::InvalidArgumentError("bytes cannot be written in YAML; remove the key");
    }
    target.PutString(node.scalar);
    return absl::OkStatus();
  }
  if (type == FieldDescriptor::CPPTYPE_ENUM) {
    const absl::StatusOr<int> value = ParseEnum(*field.enum_type(), node.scalar);
    if (value.ok()) target.PutEnumValue(*value);
    return value.status();
  }
  if (node.quoted) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' in quotes is text (must be %s); remove the quotes", CutText(node.scalar, 64),
        type == FieldDescriptor::CPPTYPE_BOOL ? "true or false" : "a number"));
  }
  const auto put = [](const auto& value, auto&& store) {
    if (value.ok()) store(*value);
    return value.status();
  };
  using std::numeric_limits;
  switch (type) {
    case FieldDescriptor::CPPTYPE_INT32:
      return put(
          ParseInteger(node.scalar, numeric_limits<int32_t>::min(), numeric_limits<int32_t>::max()),
          [&](int64_t v) { target.PutInt32(static_cast<int32_t>(v)); });
    case FieldDescriptor::CPPTYPE_INT64:
      return put(
          ParseInteger(node.scalar, numeric_limits<int64_t>::min(), numeric_limits<int64_t>::max()),
          [&](int64_t v) { target.PutInt64(v); });
    case FieldDescriptor::CPPTYPE_UINT32:
      return put(ParseUnsigned(node.scalar, numeric_limits<uint32_t>::max()),
                 [&](uint64_t v) { target.PutUInt32(static_cast<uint32_t>(v)); });
    case FieldDescriptor::CPPTYPE_UINT64:
      return put(ParseUnsigned(node.scalar, numeric_limits<uint64_t>::max()),
                 [&](uint64_t v) { target.PutUInt64(v); });
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return put(ParseDouble(node.scalar), [&](double v) { target.PutDouble(v); });
    case FieldDescriptor::CPPTYPE_FLOAT:
      return put(ParseDouble(node.scalar),
                 [&](double v) { target.PutFloat(static_cast<float>(v)); });
    case FieldDescriptor::CPPTYPE_BOOL:
      return put(ParseBool(node.scalar), [&](bool v) { target.PutBool(v); });
    default:
      return absl::InternalError("this field has no YAML form; report it");
  }
}

class Walker {
 public:
  Walker(const Descriptor& root, LoadResult* result, std::vector<LoadError>* errors)
      : root_(root),
        is_job_(root.full_name() == v1::JobSpec::descriptor()->full_name()),
        result_(result),
        errors_(errors) {}

  void Fill(const YamlNode& node, const std::string& path, Message* message) {
    if (node.kind == Kind::kNull) return;  // a section without keys
    if (node.kind != Kind::kMap) {
      return Error(node, path.empty() ? "yaml" : path,
                   "must be a section of keys; write `key: value` lines");
    }
    std::vector<const YamlNode*> keys;
    for (const auto& [key, value] : node.entries) {
      if (CheckKey(key, path, &keys)) FillKey(node, key, value, path, message);
    }
  }

 private:
  void Error(const YamlNode& node, const std::string& field, std::string text) {
    errors_->push_back({node.place, field, std::move(text)});
  }

  // True for a scalar key that has not been given before; otherwise reports an error.
  bool CheckKey(const YamlNode& key, const std::string& path, std::vector<const YamlNode*>* keys) {
    if (key.kind != Kind::kScalar) {
      Error(key, path.empty() ? "yaml" : path, "a key must be a single word; write `key: value`");
      return false;
    }
    if (key.scalar == "<<") {
      Error(key, Join(path, key.scalar), "merge key; write the keys out");
      return false;
    }
    for (const YamlNode* seen : *keys) {
      if (seen->scalar != key.scalar) continue;
      Error(key, Join(path, CutText(key.scalar, 64)),
            absl::StrFormat("given twice (first on line %d); remove one", seen->place.line));
      return false;
    }
    keys->push_back(&key);
    return true;
  }

  void FillKey(const YamlNode& section, const YamlNode& key, const YamlNode& value,
               const std::string& path, Message* message) {
    const Descriptor& type = *message->GetDescriptor();
    const FieldDescriptor* field = type.FindFieldByName(key.scalar);
    const std::string name = Join(path, CutText(key.scalar, 64));
    if (field == nullptr && is_job_)
      field = Legacy(section, key, name, type);
    else if (field == nullptr)
      Error(key, name, UnknownKey(root_, type, path, key.scalar));
    if (field == nullptr) return;
    const std::string field_path = Join(path, field->name());
    result_->places[field_path] = key.place;
    FillField(value, key, field_path, {message, field});
  }

  // Handles a key that the message does not have: a key of the Python system or a mistake. Returns
  // the field to set instead, or null.
  const FieldDescriptor* Legacy(const YamlNode& section, const YamlNode& key,
                                const std::string& name, const Descriptor& type) {
    const LegacyRule* rule = FindLegacyRule(name);
    if (rule == nullptr) {
      const size_t dot = name.size() - std::min(key.scalar.size(), size_t{64});
      Error(key, name,
            UnknownKey(root_, type, dot == 0 ? "" : name.substr(0, dot - 1), key.scalar));
      return nullptr;
    }
    const bool superseded = std::ranges::any_of(
        section.entries, [&](const auto& entry) { return entry.key.scalar == rule->replacement; });
    result_->legacy.push_back(
        {name, key.place,
         superseded ? "is ignored, because " + std::string(rule->replacement) + " is set, too"
                    : std::string(rule->why)});
    if (rule->replacement.empty() || superseded) return nullptr;
    return type.FindFieldByName(std::string(rule->replacement));
  }

  void FillField(const YamlNode& value, const YamlNode& key, const std::string& path,
                 const Target& target) {
    const FieldDescriptor& field = *target.field;
    const bool is_section = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (value.kind == Kind::kNull && (!is_section || field.is_repeated())) {
      return Error(key, path, "has no value; give it one or remove the key");
    }
    if (field.is_map()) return FillMap(value, path, target);
    if (field.is_repeated()) return FillList(value, path, target);
    if (is_section) {
      return Fill(value, path, target.reflection().MutableMessage(target.message, &field));
    }
    FillScalar(value, path, target);
  }

  void FillScalar(const YamlNode& value, const std::string& path, const Target& target) {
    if (value.kind == Kind::kNull) {
      return Error(value, path, "has no value; give it one or remove it");
    }
    if (value.kind != Kind::kScalar) {
      return Error(value, path,
                   absl::StrFormat("a %s (must be one value); write one value",
                                   value.kind == Kind::kMap ? "section of keys" : "list"));
    }
    const absl::Status status = PutScalar(target, value);
    if (!status.ok()) Error(value, path, std::string(status.message()));
  }

  void FillList(const YamlNode& value, const std::string& path, const Target& target) {
    const bool of_messages = target.field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (value.kind == Kind::kScalar && !of_messages) return FillScalar(value, path, target);
    if (value.kind != Kind::kSequence) {
      return Error(
          value, path,
          of_messages
              ? absl::StrFormat("%s (must be a list of sections); write lines of "
                                "`- name: value`",
                                value.kind == Kind::kMap ? "a section of keys" : "one value")
              : "a section of keys (must be a list); write [a, b] or lines of `- a`");
    }
    for (size_t i = 0; i < value.items.size(); ++i) {
      const YamlNode& item = value.items[i];
      const std::string item_path = absl::StrFormat("%s[%d]", path, i);
      result_->places[item_path] = item.place;
      if (of_messages) {
        Fill(item, item_path, target.reflection().AddMessage(target.message, target.field));
      } else {
        FillScalar(item, item_path, target);
      }
    }
  }

  // A map, or a list of one-key maps (`- RULE: reason`).
  void FillMap(const YamlNode& value, const std::string& path, const Target& target) {
    std::vector<const YamlNode*> keys;
    if (value.kind == Kind::kMap) return FillMapEntries(value, path, target, &keys);
    if (value.kind != Kind::kSequence) {
      return Error(value, path, "one value (must be a section of keys); write `name: value` lines");
    }
    for (const YamlNode& item : value.items) {
      if (item.kind == Kind::kMap) {
        FillMapEntries(item, path, target, &keys);
      } else {
        Error(item, path, "an entry without a value; write `- name: value`");
      }
    }
  }

  void FillMapEntries(const YamlNode& value, const std::string& path, const Target& target,
                      std::vector<const YamlNode*>* keys) {
    const Descriptor& entry = *target.field->message_type();
    for (const auto& [key, item] : value.entries) {
      if (!CheckKey(key, path, keys)) continue;
      const std::string item_path = Join(path, CutText(key.scalar, 64));
      result_->places[item_path] = key.place;
      if (item.kind == Kind::kNull) {
        Error(key, item_path, "has no value; give it one or remove the key");
        continue;
      }
      Message* added = target.reflection().AddMessage(target.message, target.field);
      FillScalar(key, item_path, {added, entry.map_key()});
      FillMapValue(item, key, item_path, {added, entry.map_value()});
    }
  }

  // A message as the value of a map stands for its only field: `source: [a, b]`.
  void FillMapValue(const YamlNode& item, const YamlNode& key, const std::string& path,
                    const Target& target) {
    if (target.field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      return FillScalar(item, path, target);
    }
    Message* const value = target.reflection().MutableMessage(target.message, target.field);
    FillField(item, key, path, {value, value->GetDescriptor()->field(0)});
  }

  const Descriptor& root_;
  const bool is_job_;
  LoadResult* result_;
  std::vector<LoadError>* errors_;
};

}  // namespace

void FillMessage(const YamlNode& root, Message* message, LoadResult* result,
                 std::vector<LoadError>* errors) {
  Walker(*message->GetDescriptor(), result, errors).Fill(root, "", message);
}

}  // namespace nsa
