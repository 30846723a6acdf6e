// Labels that change after the submit, notes, and mutes.
#include "server/act/edit/edit_job.h"

#include <functional>
#include <map>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/reason.h"
#include "gmock/gmock.h"
#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// Two callers at once.
void Together(const std::function<void()>& first, const std::function<void()>& second) {
  std::thread other(second);
  first();
  other.join();
}

class EditJobTest : public Harness {
 protected:
  static v1::EditJobRequest Set(const std::string& job,
                                const std::map<std::string, std::string>& labels,
                                const std::vector<std::string>& removed = {}) {
    v1::EditJobRequest request;
    request.set_job(job);
    request.mutable_set_labels()->insert(labels.begin(), labels.end());
    request.mutable_remove_labels()->Assign(removed.begin(), removed.end());
    return request;
  }

  static v1::EditJobRequest Note(const std::string& job, const std::string& text) {
    v1::EditJobRequest request;
    request.set_job(job);
    request.set_note(text);
    return request;
  }

  absl::Status Edit(const v1::EditJobRequest& request, const std::string& only = "") {
    return EditJob(store(), request, "ada", only).status();
  }

  // The texts of the events with this reason.
  std::vector<std::string> Texts(const std::string& id, const std::string& reason) {
    std::vector<std::string> texts;
    const auto events = store().Events(id, 0, 1000);
    EXPECT_OK(events.status());
    for (const v1::JobEvent& event : *events) {
      if (event.reason() == reason) texts.push_back(event.text());
    }
    return texts;
  }

  std::vector<std::string> WithLabel(const std::string& key, const std::string& value) {
    v1::ListJobsRequest request;
    (*request.mutable_labels())[key] = value;
    const auto list = control().List(request);
    EXPECT_OK(list.status());
    std::vector<std::string> ids;
    for (const v1::Job& job : list->jobs()) ids.push_back(job.id());
    return ids;
  }
};

TEST_F(EditJobTest, LabelsAreSetChangedAndRemovedInAnyState) {
  v1::JobSpec spec = Spec("demo");
  (*spec.mutable_labels())["team"] = "text";
  (*spec.mutable_labels())["draft"] = "yes";
  const std::string id = Submit(spec);
  ASSERT_OK(Edit(Set("demo", {{"team", "vision"}, {"run", "7"}}, {"draft", "unknown"})));
  EXPECT_THAT(Get(id).spec().labels(),
              UnorderedElementsAre(Pair("team", "vision"), Pair("run", "7")));
  EXPECT_THAT(Texts(id, "LABELS_CHANGED"),
              ElementsAre("run=7, team=vision (was text), draft removed (ada)"));
  EXPECT_THAT(WithLabel("team", "vision"), ElementsAre(id));
  EXPECT_THAT(WithLabel("team", "text"), IsEmpty());

  ASSERT_OK(Stop(id, v1::STOP_MODE_NOW));
  ASSERT_OK(Edit(Set(id, {{"kept", ""}})));
  EXPECT_EQ(Get(id).state(), v1::Job::STATE_STOPPED);
  Restart();
  EXPECT_THAT(Get(id).spec().labels(),
              UnorderedElementsAre(Pair("team", "vision"), Pair("run", "7"), Pair("kept", "")));
}

TEST_F(EditJobTest, WhatChangesNothingLeavesNoEvent) {
  v1::JobSpec spec = Spec("demo");
  (*spec.mutable_labels())["team"] = "text";
  const std::string id = Submit(spec);
  ASSERT_OK(Edit(Set(id, {{"team", "text"}}, {"unknown"})));
  EXPECT_THAT(Texts(id, "LABELS_CHANGED"), IsEmpty());
}

// The preflight of a resume takes long enough for others to change the job.
TEST_F(EditJobTest, WhatChangesWhileAResumeIsPreflightedIsKept) {
  v1::JobSpec spec = Spec("demo");
  (*spec.mutable_labels())["team"] = "a";
  (*spec.mutable_labels())["old"] = "x";
  const std::string id = Submit(spec);
  ASSERT_OK(Stop(id, v1::STOP_MODE_NOW));
  v1::ResumeJobRequest request;
  request.set_job(id);
  *request.mutable_spec() = Get(id).spec();
  request.mutable_spec()->mutable_train()->set_steps(30);
  (*request.mutable_spec()->mutable_labels())["of"] = "the resume";
  int looks = 0;
  ASSERT_OK(control().Resume(request, {}, [&] {
    if (looks++ == 0) {
      EXPECT_OK(Edit(Set(id, {{"team", "b"}, {"new", "y"}}, {"old"})));
      EXPECT_OK(Edit(Note(id, "meanwhile")));
    }
    return false;
  }));
  EXPECT_GT(looks, 0);
  EXPECT_EQ(Get(id).spec().train().steps(), 30);
  EXPECT_THAT(Get(id).spec().labels(),
              UnorderedElementsAre(Pair("team", "b"), Pair("new", "y"), Pair("of", "the resume")));
  EXPECT_THAT(Texts(id, "NOTE"), ElementsAre("meanwhile (ada)"));
}

TEST_F(EditJobTest, WhatChangesBetweenReadingAJobAndResumingItIsKept) {
  const std::string id = Submit(Spec("demo"));
  ASSERT_OK(Stop(id, v1::STOP_MODE_NOW));
  v1::ResumeJobRequest request;
  request.set_job(id);
  *request.mutable_spec() = Get(id).spec();
  request.mutable_spec()->mutable_train()->set_steps(30);
  ASSERT_OK(Edit(Set(id, {{"new", "y"}})));
  ASSERT_OK(control().Resume(request, {}));
  EXPECT_EQ(Get(id).spec().train().steps(), 30);
  EXPECT_THAT(Get(id).spec().labels(), UnorderedElementsAre(Pair("new", "y")));
}

TEST_F(EditJobTest, ResumesAndEditsInPairsLoseNothing) {
  const std::string id = Submit(Spec("demo"));
  std::map<std::string, std::string> labels;
  std::vector<std::string> notes;
  for (int i = 0; i < 150; ++i) {
    ASSERT_OK(Stop(id, v1::STOP_MODE_NOW));
    const std::string key = absl::StrCat("key-", i % 30);
    const std::string value = absl::StrCat(i);
    Together([&] { EXPECT_OK(Resume(id)); },
             [&] {
               EXPECT_OK(Edit(Set(id, {{key, value}})));
               EXPECT_OK(Edit(Note(id, value)));
             });
    labels[key] = value;
    notes.push_back(value + " (ada)");
    const v1::Job job = Get(id);
    const auto& kept = job.spec().labels();
    ASSERT_EQ((std::map<std::string, std::string>(kept.begin(), kept.end())), labels) << i;
    ASSERT_FALSE(job.has_stop()) << "resumed";
  }
  EXPECT_EQ(Texts(id, "NOTE"), notes);
}

TEST_F(EditJobTest, ANoteIsOneEventHoweverOftenItIsSent) {
  const std::string id = Submit(Spec("demo"));
  v1::EditJobRequest request = Note(id, " a spike at 1,200 \n");
  request.set_request_id("n1");
  ASSERT_OK(Edit(request));
  Restart();
  ASSERT_OK(Edit(request)) << "the answer was lost and the request is sent again";
  EXPECT_THAT(Texts(id, "NOTE"), ElementsAre("a spike at 1,200 (ada)"));
  request.set_note("another");
  EXPECT_THAT(Edit(request), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("request_id")));
  EXPECT_THAT(Texts(id, "NOTE"), ElementsAre("a spike at 1,200 (ada)"));
}

TEST_F(EditJobTest, RefusesWhatIsBeyondTheLimits) {
  v1::JobSpec spec = Spec("demo");
  for (int i = 0; i < 63; ++i) (*spec.mutable_labels())["k" + std::to_string(i)] = "v";
  const std::string id = Submit(spec);
  const auto refused = [&](const v1::EditJobRequest& request, const std::string& what) {
    EXPECT_THAT(Edit(request), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what)));
  };
  refused(Set(id, {}), "request: says nothing");
  refused(Note(id, " \n"), "request: says nothing");
  refused(Note(id, std::string(1001, 'x')), "note: 1001 bytes (at most 1000)");
  refused(Set(id, {{"", "v"}}), "set_labels: '': 0 and 1 characters");
  refused(Set(id, {{std::string(64, 'k'), "v"}}), "': 64 and 1 characters");
  refused(Set(id, {{"k", std::string(257, 'v')}}), "1 and 257 characters");
  refused(Set(id, {{"a", "1"}}, {"a"}), "remove_labels: 'a' is also set");
  refused(Set(id, {{"a", "1"}, {"b", "2"}}), "65 labels (at most 64)");
  EXPECT_EQ(Get(id).spec().labels().size(), 63) << "a refused request changes nothing";
  ASSERT_OK(Edit(Set(id, {{"a", "1"}, {"b", "2"}}, {"k0"}))) << "64 after the change";
  ASSERT_OK(Edit(Note(id, std::string(1000, 'x'))));
  v1::EditJobRequest long_id = Note(id, "x");
  long_id.set_request_id(std::string(129, 'r'));
  refused(long_id, "request_id: 129 bytes");
}

TEST_F(EditJobTest, TheLabelsOfASweepStay) {
  v1::JobSpec spec = Spec("demo");
  spec.mutable_sweep()->set_name("rates");
  spec.mutable_sweep()->set_jobs(2);
  (*spec.mutable_labels())["sweep"] = "rates";
  (*spec.mutable_labels())["train.lr"] = "1e-3";
  const std::string id = Submit(spec);
  for (const auto& request : {Set(id, {{"sweep", "other"}}), Set(id, {}, {"sweep"}),
                              Set(id, {{"train.lr", "2"}}), Set(id, {}, {"train.lr"})}) {
    EXPECT_THAT(Edit(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("belongs to the sweep rates")));
  }
  ASSERT_OK(Edit(Set(id, {{"seen", "yes"}})));
  const std::string alone = Submit(Spec("alone"));
  ASSERT_OK(Edit(Set(alone, {{"sweep", "mine"}}))) << "it belongs to no sweep";
}

TEST_F(EditJobTest, AnothersJobDoesNotExist) {
  const std::string id = Submit(Spec("demo"));
  EXPECT_THAT(Edit(Note(id, "x"), "somebody"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Edit(Note("nothing", "x")), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Texts(id, "NOTE"), IsEmpty());
}

// U+202E turns the text behind it around, on the page and in a terminal.
TEST_F(EditJobTest, MarksThatTurnTheTextAroundAreShownInNotesAndRefusedInLabels) {
  const std::string id = Submit(Spec("demo"));
  ASSERT_OK(Edit(Note(id, "ok \u202Elru")));
  EXPECT_THAT(Texts(id, "NOTE"), ElementsAre("ok \\u202elru (ada)"));
  for (const std::string text : {"\u202Ea", "\u2066a", "\u200Fa", "\x1b[2J"}) {
    EXPECT_THAT(Edit(Set(id, {{text, "1"}})),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("direction of writing")));
    EXPECT_THAT(Edit(Set(id, {{"a", text}})), StatusIs(absl::StatusCode::kInvalidArgument));
    v1::JobSpec spec = Spec("labelled");
    (*spec.mutable_labels())["a"] = text;
    v1::SubmitJobRequest submit;
    *submit.mutable_spec() = spec;
    EXPECT_THAT(control().Submit(submit), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST_F(EditJobTest, AProblemIsMutedAndUnmutedOnceWithItsAuthor) {
  const std::string id = Submit(Spec("demo"));
  v1::EditJobRequest request;
  request.set_job("demo");
  request.add_mute("DIVERGED");
  ASSERT_OK(Edit(request));
  ASSERT_OK(Edit(request)) << "it is muted already";
  ASSERT_EQ(Get(id).mutes_size(), 1);
  EXPECT_EQ(Get(id).mutes(0).problem(), "DIVERGED");
  EXPECT_EQ(Get(id).mutes(0).who(), "ada");
  EXPECT_GT(Get(id).mutes(0).unix_nanos(), 0);
  EXPECT_EQ(Get(id).mutes(0).end_unix_nanos(), 0);
  EXPECT_THAT(Texts(id, "MUTED"), ElementsAre("DIVERGED until the job ends (ada)"));
  request.clear_mute();
  request.add_unmute("DIVERGED");
  request.add_unmute("PLATEAU");
  ASSERT_OK(Edit(request));
  EXPECT_EQ(Get(id).mutes_size(), 0);
  EXPECT_THAT(Texts(id, "UNMUTED"), ElementsAre("DIVERGED (ada)"));
}

TEST_F(EditJobTest, WhatIsNoNameOfAProblemIsNotMuted) {
  Submit(Spec("demo"));
  for (const std::string& word : {std::string("diverged"), std::string("NOPE"), std::string()}) {
    v1::EditJobRequest request;
    request.set_job("demo");
    request.add_mute(word);
    EXPECT_THAT(std::string(Edit(request).message()), HasSubstr("not the name of a problem"));
  }
  v1::EditJobRequest request;
  request.set_job("demo");
  request.add_mute("HANG");
  request.add_unmute("HANG");
  EXPECT_THAT(std::string(Edit(request).message()), HasSubstr("choose one"));
  request.clear_unmute();
  for (int i = 0; request.mute_size() < 65; ++i) {
    const std::string word = Word(static_cast<Reason>(i));
    if (word != "HANG") request.add_mute(word);
  }
  EXPECT_THAT(std::string(Edit(request).message()), HasSubstr("65 muted problems (at most 64)"));
}

}  // namespace
}  // namespace nsa::server
