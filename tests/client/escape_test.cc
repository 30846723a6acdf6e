// No escape sequence from outside reaches the terminal: every text of every message from the
// coordinator, mistakes in job files, and errors.
#include <fstream>

#include "gmock/gmock.h"
#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"
#include "tests/client/commands_fixture.h"

namespace nsa::client {
namespace {

using ::testing::HasSubstr;

// A window title, a colour in C1 (U+009B is CSI), a reversal of the direction, a delete.
constexpr char kHostile[] =
    "\x1b]0;pwned\x07 \xc2\x9b"
    "31m \xe2\x80\xae \x7f";

// What a terminal would obey, as far as nsactl does not write it itself: without colours it writes
// no control character but line feed and tab.
std::string Steering(const std::string& text) {
  std::string found;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 =
        byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    const bool reversal = text.compare(i, 3, "\xe2\x80\xae") == 0;
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F || c1 || reversal) {
      found += text.substr(i, 8) + "|";
    }
  }
  return found;
}

// Puts the hostile text behind every text of a message, but the ids by which things are found.
void Poison(google::protobuf::Message* message) {
  using google::protobuf::FieldDescriptor;
  const auto& reflection = *message->GetReflection();
  const auto& type = *message->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.name() == "id" || field.name() == "job_id" || field.is_map()) continue;
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (!field.is_repeated() && reflection.HasField(*message, &field)) {
        Poison(reflection.MutableMessage(message, &field));
      }
      for (int k = 0; field.is_repeated() && k < reflection.FieldSize(*message, &field); ++k) {
        Poison(reflection.MutableRepeatedMessage(message, &field, k));
      }
    } else if (field.type() == FieldDescriptor::TYPE_STRING) {
      if (field.is_repeated()) {
        reflection.AddString(message, &field, kHostile);
      } else {
        reflection.SetString(message, &field, reflection.GetString(*message, &field) + kHostile);
      }
    }
  }
}

class EscapeTest : public CommandsTest {
 protected:
  EscapeTest() {
    setenv("NO_COLOR", "1", 1);
    terminal_ = true;
    v1::Job& job = state().jobs[0];
    job.add_ranks();
    job.add_warnings();
    (*job.mutable_waivers())[kHostile] = kHostile;
    (*job.mutable_spec()->mutable_labels())[kHostile] = kHostile;
    for (v1::Job& each : state().jobs) Poison(&each);
    Poison(&AddEvent(1, "PLACED"));
    AddStep(1);
    v1::WatchRecordsResponse& event = AddRecord(2);
    event.mutable_record()->mutable_event()->set_reason("X");
    Poison(&event);
    v1::Node& node = state().nodes.emplace_back();
    node.mutable_info()->add_gpus();
    node.mutable_info()->set_name("n");
    node.mutable_cordon()->set_by("b");
    node.mutable_cordon()->set_reason("r");
    Poison(&node);
    node.mutable_info()->set_name("n");
    node.add_job_ids(kHostile);
    Poison(&state().checkpoints.emplace_back());
    state().checkpoint_problems.emplace_back(kHostile);
    Poison(&state().dumps.emplace_back());
    v1::GetSavedStacksResponse& saved = state().saved_stacks.emplace_back();
    saved.mutable_saved()->set_id(1);
    Poison(&saved);
    v1::StreamLogsResponse& log = state().logs.emplace_back();
    log.set_data(std::string(kHostile) + "\n");
    v1::Finding& finding = *state().report.add_findings();
    finding.set_severity(v1::SEVERITY_ERROR);
    Poison(&finding);
    state().report.add_estimates()->set_name(kHostile);
  }
};

TEST_F(EscapeTest, NoCommandPassesASteeringTextOn) {
  const std::vector<std::vector<std::string>> commands = {
      {"list"},
      {"list", "-o", "wide"},
      {"describe", "jdemo1234567"},
      {"events", "jdemo1234567"},
      {"metrics", "jdemo1234567"},
      {"plot", "jdemo1234567"},
      {"compare", "jdemo1234567", "jold12345678a"},
      {"compare", "jdemo1234567", "jold12345678a", "--all"},
      {"bisect", "jdemo1234567", "jold12345678a"},
      {"replay", "jdemo1234567", "--step", "375", "--from", "0"},
      {"nodes"},
      {"nodes", "-o", "wide"},
      {"node", "drain", "n"},
      {"node", "uncordon", "n"},
      {"checkpoint", "list", "jdemo1234567"},
      {"checkpoint", "verify", "jdemo1234567"},
      {"dump-stack", "jdemo1234567"},
      {"dump-stack", "jdemo1234567", "--saved"},
      {"dump-stack", "jdemo1234567", "--saved=1"},
      {"stop", "jdemo1234567"},
      {"resume", "jold12345678a"},
      {"delete", "jold12345678a", "--yes"},
      {"logs", "jdemo1234567"},
      {"version"},
  };
  for (const auto& command : commands) {
    for (const char* format : {"table", "json", "yaml"}) {
      std::vector<std::string> words = command;
      if (words.back() != "wide") words.insert(words.end(), {"--output", format});
      const auto result = Run(words);
      EXPECT_EQ(Steering(result.out), "") << words[0] << " -o " << format;
      EXPECT_EQ(Steering(result.err), "") << words[0] << " -o " << format;
    }
  }
}

TEST_F(EscapeTest, TopDoesNotEither) {
  terminal_ = false;  // on a terminal it does not end
  for (const char* format : {"table", "json", "yaml"}) {
    EXPECT_EQ(Steering(Run({"top", "-o", format}).out), "") << format;
  }
}

TEST_F(EscapeTest, DocumentsKeepTheTextAsItIs) {
  const auto result = Run({"list", "-o", "json"});
  const auto document = nlohmann::json::parse(result.out);
  EXPECT_THAT(document["jobs"][0]["name"].get<std::string>(), HasSubstr(kHostile));
}

TEST_F(EscapeTest, ErrorsOfTheCoordinatorAreCleaned) {
  state().failures["GetJob"] = {grpc::Status(grpc::StatusCode::NOT_FOUND, kHostile)};
  const auto result = Run({"describe", "x"});
  EXPECT_EQ(Steering(result.err), "");
  EXPECT_THAT(result.err, HasSubstr("\\x1b]0;pwned\\x07"));
}

TEST_F(EscapeTest, MistakesInAJobFileAreCleaned) {
  const std::string file = (dir_ / "job.yaml").string();
  for (const char* yaml :
       {"\"unknown\\e]0;pwned\\a\": 1\n", "name: \"\\e[31m\"\n", "train: {steps: \"\\e[31m\"}\n",
        "data: {path: \"\\e[31m/x\"}\n", "labels: {\"\\e[31m\": \"\\e[31m\"}\n"}) {
    std::ofstream(file) << yaml;
    const auto result = Run({"validate", "--offline", file});
    EXPECT_EQ(Steering(result.out), "") << yaml;
    EXPECT_EQ(Steering(result.err), "") << yaml;
  }
}

}  // namespace
}  // namespace nsa::client
