// LoadYamlText reads the output of ToYaml back as the same message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "common/job/load.h"
#include "google/protobuf/util/message_differencer.h"
#include "nsa/v1/config.pb.h"
#include "nsa/v1/job_status.pb.h"
#include "tests/common/job/every_field.h"

namespace nsa {
namespace {

using google::protobuf::util::MessageDifferencer;

TEST(ToYaml, OfAJobWithEveryFieldLoadsAsTheSameJob) {
  const v1::JobSpec spec = JobWithEveryField();
  v1::JobSpec loaded;
  const auto result = LoadYamlText(ToYaml(spec), "x.yaml", &loaded);
  ASSERT_TRUE(result.ok()) << result.status() << ToYaml(spec);
  EXPECT_TRUE(MessageDifferencer::Equals(spec, loaded)) << ToYaml(spec);
}

TEST(ToYaml, OfAnEffectiveJobLoadsAsTheSameJob) {
  v1::JobSpec spec;
  spec.set_name("a");
  ApplyDefaults(&spec);
  v1::JobSpec loaded;
  ASSERT_TRUE(LoadYamlText(ToYaml(spec), "x.yaml", &loaded).ok()) << ToYaml(spec);
  EXPECT_TRUE(MessageDifferencer::Equals(spec, loaded));
}

TEST(ToYaml, QuotesTextThatCouldBeTakenForSomethingElse) {
  const char* texts[] = {"true", "no",   "null", "~",    "",      "5",     "-",     "1e5", ".nan",
                         "a: b", "a #b", "#a",   "*a",   "&a",    "!a",    "{a}",   "[a]", "'a'",
                         "\"a",  "a\\b", "a\nb", "a\tb", " a",    "a ",    "größe", "%a",  "@a",
                         "`a",   "|",    ">",    "---",  "a\x01", "a\x7F", "a, b",  "? a", "<<"};
  for (const char* text : texts) {
    v1::JobSpec spec;
    spec.set_name(text);
    spec.mutable_data()->add_path(text);
    (*spec.mutable_labels())[text] = text;
    v1::JobSpec loaded;
    const auto result = LoadYamlText(ToYaml(spec), "x.yaml", &loaded);
    if (std::string_view(text) == "<<") continue;  // a merge key is an error, even in quotes
    ASSERT_TRUE(result.ok()) << result.status() << ToYaml(spec);
    EXPECT_TRUE(MessageDifferencer::Equals(spec, loaded)) << ToYaml(spec);
  }
}

TEST(ToYaml, KeepsEveryBitOfANumber) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 2000; ++round) {
    const uint64_t bits = random();
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isfinite(value) || std::abs(value) < 1e-300) continue;
    v1::JobSpec spec;
    spec.mutable_train()->set_lr(value);
    spec.mutable_train()->set_steps(static_cast<int64_t>(bits));
    v1::JobSpec loaded;
    ASSERT_TRUE(LoadYamlText(ToYaml(spec), "x.yaml", &loaded).ok()) << ToYaml(spec);
    EXPECT_TRUE(MessageDifferencer::Equals(spec, loaded)) << ToYaml(spec);
  }
}

TEST(ToYaml, AMessageInAMapIsWrittenAsItsOnlyField) {
  const std::string text =
      "data:\n"
      "  where:\n"
      "    source:\n"
      "      - a\n"
      "      - \"7\"\n"
      "  val_where:\n"
      "    books:\n"
      "      source:\n"
      "        - b\n";
  v1::JobSpec spec;
  ASSERT_TRUE(LoadYamlText("data: {where: {source: [a, 7]}, val_where: {books: {source: b}}}",
                           "x.yaml", &spec)
                  .ok());
  EXPECT_EQ(spec.data().where().at("source").value_size(), 2);
  EXPECT_EQ(spec.data().val_where().at("books").field().at("source").value(0), "b");
  EXPECT_EQ(ToYaml(spec), text);
  v1::JobSpec again;
  ASSERT_TRUE(LoadYamlText(text, "x.yaml", &again).ok());
  EXPECT_TRUE(MessageDifferencer::Equals(spec, again));
}

TEST(ToYaml, OfAnEmptyFilterLoadsAsTheSameJob) {
  v1::JobSpec spec, loaded;
  (*spec.mutable_data()->mutable_where())["source"];
  (*spec.mutable_data()->mutable_val_where())["books"];
  ASSERT_TRUE(LoadYamlText(ToYaml(spec), "x.yaml", &loaded).ok()) << ToYaml(spec);
  EXPECT_TRUE(MessageDifferencer::Equals(spec, loaded)) << ToYaml(spec);
}

TEST(ToYaml, AMessageInAMapIsRefusedAtItsPlace) {
  for (const auto& [text, error] : std::map<std::string, std::string>{
           {"data: {where: {source: {a: b}}}", "data.where.source: "},
           {"data: {where: {source: }}", "data.where.source: has no value"},
           {"data: {where: source}", "data.where: one value (must be a section of keys)"},
           {"data: {where: {source: [[a]]}}", "data.where.source[0]: a list"},
           {"data: {val_where: {books: [a]}}", "data.val_where.books: an entry without a value"}}) {
    v1::JobSpec spec;
    const auto result = LoadYamlText(text, "x.yaml", &spec);
    EXPECT_THAT(std::string(result.status().message()), testing::HasSubstr(error)) << text;
  }
}

TEST(ToYaml, PrintsSectionsListsAndMapsInAFixedOrder) {
  v1::JobSpec spec;
  spec.set_name("a");
  (*spec.mutable_labels())["z"] = "1";
  (*spec.mutable_labels())["b"] = "x y";
  spec.mutable_train()->add_betas(0.9);
  spec.mutable_train()->add_betas(0.95);
  spec.mutable_data()->add_path("/a b");
  EXPECT_EQ(ToYaml(spec),
            "name: a\n"
            "labels:\n"
            "  b: \"x y\"\n"
            "  z: \"1\"\n"
            "data:\n"
            "  path:\n"
            "    - \"/a b\"\n"
            "train:\n"
            "  betas: [0.9, 0.95]\n");
  EXPECT_EQ(ToYaml(v1::JobSpec()), "{}\n");
}

TEST(ToYaml, PrintsListsOfMessages) {
  v1::Job job;
  job.set_state(v1::Job::STATE_RUNNING);
  job.add_ranks()->set_node("n0");
  job.mutable_ranks(0)->set_pid(7);
  job.add_ranks();
  EXPECT_EQ(ToYaml(job), "state: running\nranks:\n  - node: n0\n    pid: 7\n  - {}\n");
}

TEST(ToYaml, OfListsOfMessagesLoads) {
  v1::ClientConfig config;
  config.set_current("here");
  config.add_contexts()->set_name("here");
  config.mutable_contexts(0)->mutable_tls()->set_client_ca_file("/ca");
  config.add_contexts()->set_name("there");
  v1::ClientConfig loaded;
  const auto result = LoadYamlText(ToYaml(config), "x.yaml", &loaded);
  ASSERT_TRUE(result.ok()) << result.status() << ToYaml(config);
  EXPECT_TRUE(MessageDifferencer::Equals(config, loaded)) << ToYaml(config);
}

}  // namespace
}  // namespace nsa
