// The schema follows buf's STANDARD rules. The name of a number with a unit includes the unit.
// Services and methods have a comment. In the files that users write, the comment of a number has
// its limits and its default, and the comment of a bool or an enum has its default.
#include "google/protobuf/descriptor.h"

#include <gtest/gtest.h>

#include <cctype>
#include <fstream>
#include <functional>
#include <regex>
#include <set>

#include "google/protobuf/descriptor.pb.h"
#include "tests/testing/paths.h"

namespace nsa {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using google::protobuf::FileDescriptorSet;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using google::protobuf::SourceLocation;

bool Matches(const std::string& name, const char* pattern) {
  return std::regex_match(name, std::regex(pattern));
}
bool IsPascal(const std::string& name) { return Matches(name, "([A-Z][a-z0-9]*)+"); }
bool IsLowerSnake(const std::string& name) { return Matches(name, "[a-z][a-z0-9]*(_[a-z0-9]+)*"); }
bool IsUpperSnake(const std::string& name) { return Matches(name, "[A-Z][A-Z0-9]*(_[A-Z0-9]+)*"); }

std::string UpperSnake(const std::string& pascal) {
  std::string upper;
  for (size_t i = 0; i < pascal.size(); ++i) {
    const auto c = static_cast<unsigned char>(pascal[i]);
    if (i > 0 && std::isupper(c) != 0) upper += '_';
    upper += static_cast<char>(std::toupper(c));
  }
  return upper;
}

// Finds the faults of a schema, one line for each.
class Linter {
 public:
  std::vector<std::string> Lint(const FileDescriptor& file) {
    Check(file.package() == "nsa.v1", file.name(), "package is nsa.v1");
    Check(Matches(file.name(), "nsa/v1/[a-z][a-z0-9_]*\\.proto"), file.name(),
          "lies in nsa/v1 and is lower_snake_case");
    Check(file.syntax() == FileDescriptor::SYNTAX_PROTO3, file.name(), "is proto3");
    for (int i = 0; i < file.message_type_count(); ++i) Message(*file.message_type(i));
    for (int i = 0; i < file.enum_type_count(); ++i) Enum(*file.enum_type(i));
    for (int i = 0; i < file.service_count(); ++i) Service(*file.service(i));
    return std::move(faults_);
  }

 private:
  void Check(bool good, const std::string& name, const std::string& rule) {
    if (!good) faults_.push_back(name + ": " + rule);
  }

  template <class T>
  void Comment(const T& thing) {
    SourceLocation location;
    const bool there = thing.GetSourceLocation(&location);
    const std::string& text = location.leading_comments;
    Check(there && text.find_first_not_of(" \n") != std::string::npos, thing.full_name(),
          "has a comment above it");
  }

  // Checks the comment of a key of a job file or a configuration file.
  void Key(const FieldDescriptor& field) {
    const std::string& file = field.file()->name();
    const bool of_user =
        file == "nsa/v1/job.proto" || file == "nsa/v1/model.proto" || file == "nsa/v1/config.proto";
    const auto type = field.cpp_type();
    if (!of_user || field.is_map() || type == FieldDescriptor::CPPTYPE_MESSAGE ||
        type == FieldDescriptor::CPPTYPE_STRING) {
      return;
    }
    SourceLocation location;
    field.GetSourceLocation(&location);
    const std::string& text = location.leading_comments;
    Check(text.find("Default: ") != std::string::npos, field.full_name(),
          "says its default in its comment, as `Default: 1.`");
    if (type == FieldDescriptor::CPPTYPE_BOOL || type == FieldDescriptor::CPPTYPE_ENUM) return;
    Check(text.find("Limits: ") != std::string::npos, field.full_name(),
          "says its limits in its comment, as `Limits: 1 to 16.`");
  }

  void Message(const Descriptor& message) {
    if (message.options().map_entry()) return;
    Check(IsPascal(message.name()), message.full_name(), "is PascalCase");
    Check(message.reserved_range_count() == message.reserved_name_count(), message.full_name(),
          "reserves a name for each number, in the same order");
    for (int i = 0; i < message.field_count(); ++i) Field(*message.field(i));
    for (int i = 0; i < message.real_oneof_decl_count(); ++i) {
      Check(IsLowerSnake(message.oneof_decl(i)->name()), message.oneof_decl(i)->full_name(),
            "is lower_snake_case");
    }
    for (int i = 0; i < message.nested_type_count(); ++i) Message(*message.nested_type(i));
    for (int i = 0; i < message.enum_type_count(); ++i) Enum(*message.enum_type(i));
  }

  void Field(const FieldDescriptor& field) {
    const std::string& name = field.name();
    Check(IsLowerSnake(name), field.full_name(), "is lower_snake_case");
    Key(field);
    // Times, sizes and rates are in base units, which are spelt out.
    const bool is_text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    const bool is_number = !is_text && field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE &&
                           field.cpp_type() != FieldDescriptor::CPPTYPE_BOOL;
    if (!is_number) return;
    Check(!Matches(name,
                   ".*_(ms|us|ns|sec|secs|millis|mb|mib|gb|gib|kb|kib|pct|percent|minutes|hours)"),
          field.full_name(), "has its unit spelt out: _seconds, _unix_nanos, _bytes, _ratio");
    Check(!Matches(name, "(.*_)?(time|timeout|duration|delay|interval|backoff|grace|memory|disk)"),
          field.full_name(), "ends with its unit, e.g. _seconds or _bytes");
  }

  void Enum(const EnumDescriptor& type) {
    Check(IsPascal(type.name()), type.full_name(), "is PascalCase");
    Check(!type.options().allow_alias(), type.full_name(), "has no aliases");
    const std::string prefix = UpperSnake(type.name()) + "_";
    Check(type.value(0)->number() == 0 && type.value(0)->name() == prefix + "UNSPECIFIED",
          type.full_name(), "begins with " + prefix + "UNSPECIFIED = 0");
    for (int i = 0; i < type.value_count(); ++i) {
      const auto& value = *type.value(i);
      Check(IsUpperSnake(value.name()), value.full_name(), "is UPPER_SNAKE_CASE");
      Check(value.name().starts_with(prefix), value.full_name(), "begins with " + prefix);
    }
  }

  void Service(const ServiceDescriptor& service) {
    Check(IsPascal(service.name()), service.full_name(), "is PascalCase");
    Check(service.name().ends_with("Service"), service.full_name(), "ends with Service");
    Comment(service);
    for (int i = 0; i < service.method_count(); ++i) Method(*service.method(i));
  }

  void Method(const MethodDescriptor& method) {
    const std::string& name = method.name();
    const std::string of_service = method.service()->name() + name;
    Check(IsPascal(name), method.full_name(), "is PascalCase");
    Comment(method);
    const auto named = [&](const Descriptor* type, const std::string& ending) {
      return type->name() == name + ending || type->name() == of_service + ending;
    };
    Check(named(method.input_type(), "Request"), method.full_name(), "takes " + name + "Request");
    Check(named(method.output_type(), "Response"), method.full_name(),
          "returns " + name + "Response");
    Check(used_.insert(method.input_type()->full_name()).second &&
              used_.insert(method.output_type()->full_name()).second,
          method.full_name(), "has a request and a response of its own");
  }

  std::vector<std::string> faults_;
  std::set<std::string> used_;
};

FileDescriptorSet Schema() {
  FileDescriptorSet set;
  std::ifstream in(TestFile("schema.binpb"), std::ios::binary);
  EXPECT_TRUE(set.ParseFromIstream(&in)) << TestFile("schema.binpb");
  return set;
}

TEST(Schema, KeepsItsNamingRulesAndIsDocumented) {
  const FileDescriptorSet set = Schema();
  DescriptorPool pool;
  int files = 0;
  for (const FileDescriptorProto& proto : set.file()) {
    const FileDescriptor* file = pool.BuildFile(proto);
    ASSERT_NE(file, nullptr) << proto.name();
    if (!proto.name().starts_with("nsa/")) continue;
    ++files;
    for (const std::string& fault : Linter().Lint(*file)) ADD_FAILURE() << fault;
  }
  EXPECT_GE(files, 7);
}

// The faults of a schema file that `edit` builds.
std::vector<std::string> FaultsOf(const std::function<void(FileDescriptorProto*)>& edit) {
  FileDescriptorProto proto;
  proto.set_name("nsa/v1/x.proto");
  proto.set_package("nsa.v1");
  proto.set_syntax("proto3");
  edit(&proto);
  DescriptorPool pool;
  const FileDescriptor* file = pool.BuildFile(proto);
  return file == nullptr ? std::vector<std::string>{"does not build"} : Linter().Lint(*file);
}

int Count(const std::vector<std::string>& faults, const std::string& part) {
  int count = 0;
  for (const std::string& fault : faults) count += fault.find(part) != std::string::npos ? 1 : 0;
  return count;
}

TEST(SchemaLinter, FindsEveryKindOfFault) {
  const auto faults = FaultsOf([](FileDescriptorProto* file) {
    auto* message = file->add_message_type();
    message->set_name("bad_name");
    auto* field = message->add_field();
    field->set_name("timeoutMs");
    field->set_number(1);
    field->set_type(google::protobuf::FieldDescriptorProto::TYPE_INT32);
    field->set_label(google::protobuf::FieldDescriptorProto::LABEL_OPTIONAL);
    *message->add_field() = *field;
    message->mutable_field(1)->set_name("wait_ms");
    message->mutable_field(1)->set_number(2);
    *message->add_field() = *field;
    message->mutable_field(2)->set_name("hang_timeout");
    message->mutable_field(2)->set_number(3);
    auto* type = file->add_enum_type();
    type->set_name("Colour");
    type->add_value()->set_name("NONE");
    type->mutable_value(0)->set_number(0);
    auto* service = file->add_service();
    service->set_name("Thing");
    auto* method = service->add_method();
    method->set_name("do_it");
    method->set_input_type(".nsa.v1.bad_name");
    method->set_output_type(".nsa.v1.bad_name");
  });
  EXPECT_EQ(Count(faults, "is PascalCase"), 2);
  EXPECT_EQ(Count(faults, "is lower_snake_case"), 1);
  EXPECT_EQ(Count(faults, "has its unit spelt out"), 1);
  EXPECT_EQ(Count(faults, "ends with its unit"), 1);
  EXPECT_EQ(Count(faults, "COLOUR_UNSPECIFIED = 0"), 1);
  EXPECT_EQ(Count(faults, "begins with COLOUR_"), 2);
  EXPECT_EQ(Count(faults, "ends with Service"), 1);
  EXPECT_EQ(Count(faults, "takes do_itRequest"), 1);
  EXPECT_EQ(Count(faults, "has a request and a response of its own"), 1);
  EXPECT_EQ(Count(faults, "has a comment above it"), 2);
}

TEST(SchemaLinter, WantsLimitsAndDefaultsOfTheKeysThatUsersWrite) {
  using google::protobuf::FieldDescriptorProto;
  const auto faults_of = [](const char* file, FieldDescriptorProto::Type type,
                            const char* comment) {
    return FaultsOf([&](FileDescriptorProto* proto) {
      proto->set_name(file);
      auto* message = proto->add_message_type();
      message->set_name("Spec");
      auto* field = message->add_field();
      field->set_name("size");
      field->set_number(1);
      field->set_type(type);
      field->set_label(FieldDescriptorProto::LABEL_OPTIONAL);
      auto* location = proto->mutable_source_code_info()->add_location();
      for (const int part : {4, 0, 2, 0}) location->add_path(part);  // message 0, field 0
      for (const int part : {1, 0, 1}) location->add_span(part);
      location->set_leading_comments(comment);
    });
  };
  const struct {
    const char* file;
    FieldDescriptorProto::Type type;
    const char* comment;
    int limits;
    int defaults;
  } cases[] = {
      {"nsa/v1/job.proto", FieldDescriptorProto::TYPE_INT32, "Tokens.", 1, 1},
      {"nsa/v1/config.proto", FieldDescriptorProto::TYPE_DOUBLE, "Default: 1.", 1, 0},
      {"nsa/v1/job.proto", FieldDescriptorProto::TYPE_INT64, "Limits: 1 to 2.", 0, 1},
      {"nsa/v1/job.proto", FieldDescriptorProto::TYPE_INT64, "Limits: any. Default: 1.", 0, 0},
      {"nsa/v1/job.proto", FieldDescriptorProto::TYPE_BOOL, "Whether.", 0, 1},
      {"nsa/v1/job.proto", FieldDescriptorProto::TYPE_STRING, "", 0, 0},
      {"nsa/v1/fleet.proto", FieldDescriptorProto::TYPE_INT32, "", 0, 0},
  };
  for (const auto& one : cases) {
    const auto faults = faults_of(one.file, one.type, one.comment);
    EXPECT_EQ(Count(faults, "says its limits"), one.limits) << one.file << ": " << one.comment;
    EXPECT_EQ(Count(faults, "says its default"), one.defaults) << one.file << ": " << one.comment;
  }
}

}  // namespace
}  // namespace nsa
