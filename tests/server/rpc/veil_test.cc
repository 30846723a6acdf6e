// What a submitter learns of others' jobs.
#include "tests/server/server_fixture.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class VeilTest : public ServerTest {
 protected:
  VeilTest() : tcp_(v1::CoordinatorService::NewStub(*OpenChannel(server_->listen_address(), {}))) {
    for (std::string* name : {&ada_, &bob_}) {
      v1::CreateTokenRequest request;
      request.set_role(v1::ROLE_SUBMITTER);
      request.set_name(name == &ada_ ? "ada" : "bob");
      const auto made = Call<v1::CreateTokenResponse>(&v1::CoordinatorService::Stub::CreateToken,
                                                      people_.get(), request);
      EXPECT_OK(made);
      *name = made->secret();
    }
  }

  template <typename Response, typename Method, typename Request>
  absl::StatusOr<Response> As(const std::string& token, Method method, const Request& request) {
    const auto context = MakeContext(kTimeout, token);
    Response response;
    const grpc::Status status = ((*tcp_).*method)(context.get(), request, &response);
    if (!status.ok()) return FromGrpc(status);
    return response;
  }

  absl::StatusOr<std::string> SubmitAs(const std::string& token, const v1::JobSpec& spec,
                                       const std::string& request_id = "") {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    const auto response =
        As<v1::SubmitJobResponse>(token, &v1::CoordinatorService::Stub::SubmitJob, request);
    if (!response.ok()) return response.status();
    return response->job().id();
  }

  absl::StatusOr<std::string> DeleteAs(const std::string& token, const std::string& job,
                                       const std::string& request_id) {
    v1::DeleteJobRequest request;
    request.set_job(job);
    request.set_request_id(request_id);
    const auto response =
        As<v1::DeleteJobResponse>(token, &v1::CoordinatorService::Stub::DeleteJob, request);
    if (!response.ok()) return response.status();
    return response->job_id();
  }

  absl::Status StopAs(const std::string& token, const std::string& job) {
    v1::StopJobRequest request;
    request.set_job(job);
    request.mutable_stop()->set_mode(v1::STOP_MODE_NOW);
    return As<v1::StopJobResponse>(token, &v1::CoordinatorService::Stub::StopJob, request).status();
  }

  std::vector<std::string> JobsOnNodesSeenBy(const std::string& token) {
    const auto nodes = As<v1::ListNodesResponse>(token, &v1::CoordinatorService::Stub::ListNodes,
                                                 v1::ListNodesRequest());
    EXPECT_OK(nodes);
    std::vector<std::string> ids;
    for (const v1::Node& node : nodes->nodes()) {
      ids.insert(ids.end(), node.job_ids().begin(), node.job_ids().end());
    }
    return ids;
  }

  const std::unique_ptr<v1::CoordinatorService::Stub> tcp_;
  std::string ada_;
  std::string bob_;
};

TEST_F(VeilTest, TheListOfMachinesNamesOwnJobsOnly) {
  FakeAgent agent("a", 1, Wire());
  const auto id = SubmitAs(ada_, Spec("one"));
  ASSERT_OK(id);
  ASSERT_TRUE(Within(absl::Minutes(1), [&] {
    EXPECT_OK(agent.Beat());
    return Get(*id).state() == Job::STATE_RUNNING;
  }));
  EXPECT_THAT(JobsOnNodesSeenBy(ada_), ElementsAre(*id));
  EXPECT_THAT(JobsOnNodesSeenBy(bob_), IsEmpty());
  EXPECT_THAT(JobsOnNodesSeenBy(Token()), ElementsAre(*id)) << "an operator sees all";
}

TEST_F(VeilTest, ARefusalDoesNotNameAnothersJob) {
  const auto id = SubmitAs(ada_, Spec("one"), "request-of-ada");
  ASSERT_OK(id);
  const auto taken = SubmitAs(bob_, Spec("one"));
  EXPECT_THAT(taken.status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       ::testing::AllOf(HasSubstr("choose another out_dir"), Not(HasSubstr(*id)))));
  // Preflight finds whose folder it is once the job has run there.
  std::filesystem::create_directories(folder_ / "out/left");
  std::ofstream(folder_ / "out/left/owner.json") << R"({"job_id": ")" << *id << R"("})";
  const auto left = SubmitAs(bob_, Spec("left"));
  EXPECT_THAT(left.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                      ::testing::AllOf(HasSubstr("belongs to job (another's)"),
                                                       Not(HasSubstr(*id)))));
  const auto repeated = SubmitAs(bob_, Spec("two"), "request-of-ada");
  EXPECT_THAT(repeated.status(), StatusIs(absl::StatusCode::kAlreadyExists, Not(HasSubstr(*id))));
  const auto deleted = DeleteAs(bob_, "two", "request-of-ada");
  EXPECT_THAT(deleted.status(), StatusIs(absl::StatusCode::kAlreadyExists, Not(HasSubstr(*id))));
  // Its owner sees which job it is.
  EXPECT_THAT(SubmitAs(ada_, Spec("one")).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(*id)));
}

TEST_F(VeilTest, OfTwoJobsWithOneNameASubmitterDeletesItsOwn) {
  v1::JobSpec of_bob = Spec("same");
  of_bob.mutable_train()->set_out_dir((folder_ / "out/bob").string());
  const auto ada = SubmitAs(ada_, Spec("same"));
  const auto bob = SubmitAs(bob_, of_bob);
  ASSERT_OK(ada);
  ASSERT_OK(bob);
  ASSERT_OK(StopAs(ada_, *ada));
  ASSERT_OK(StopAs(bob_, *bob));
  const auto deleted = DeleteAs(ada_, "same", "delete-same");
  ASSERT_OK(deleted);
  EXPECT_EQ(*deleted, *ada) << "the newer job of this name is bob's";
  EXPECT_EQ(Get(*bob).state(), Job::STATE_STOPPED);
  const auto again = DeleteAs(ada_, "same", "delete-same");
  ASSERT_OK(again);
  EXPECT_EQ(*again, *ada) << "the same request means the same job";
  EXPECT_EQ(Get(*bob).state(), Job::STATE_STOPPED);
}

// The same answer for another's job as for one that does not exist, wherever the id stands.
TEST_F(VeilTest, NoAnswerTellsWhetherAnIdExists) {
  const auto id = SubmitAs(ada_, Spec("one"));
  ASSERT_OK(id);
  const auto edited = [&](const std::string& job) {
    v1::EditJobRequest request;
    request.set_job(job);
    request.set_note("seen");
    return As<v1::EditJobResponse>(bob_, &v1::CoordinatorService::Stub::EditJob, request).status();
  };
  const auto submitted = [&](const std::string& job) {
    v1::JobSpec spec = Spec("two");
    spec.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
    spec.mutable_data()->add_path((folder_ / job).string());
    return SubmitAs(bob_, spec).status();
  };
  const std::string made_up = "jabcdefghijk2";
  ASSERT_EQ(made_up.size(), id->size());
  EXPECT_THAT(edited(*id), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(edited(*id).message(), edited(made_up).message());
  EXPECT_EQ(submitted(*id).message(), submitted(made_up).message());
  EXPECT_THAT(std::string(submitted(*id).message()), Not(HasSubstr(*id)));
}

}  // namespace
}  // namespace nsa::server
