// How often the page works out what clients see of a job.
#include "server/web/view_cache.h"

#include "tests/server/act/harness.h"

namespace nsa::server {
namespace {

class ViewCacheTest : public Harness {
 protected:
  JobPtr Stored(const std::string& id) {
    const auto found = store().Find(id);
    EXPECT_OK(found.status());
    return found.ok() ? *found : nullptr;
  }
};

TEST_F(ViewCacheTest, AViewIsMadeOnceForEachChangeHoweverManyAskForIt) {
  const std::string one = Submit(Spec("one"));
  const std::string other = Submit(Spec("other"));
  ViewCache views(control(), &life().hub, clock());
  const auto first = views.Of(Stored(one));
  for (int stream = 0; stream < 48; ++stream) EXPECT_EQ(views.Of(Stored(one)), first);
  EXPECT_EQ(views.made(), 1);
  life().hub.Publish(other);
  EXPECT_EQ(views.Of(Stored(one)), first) << "another job has changed";
  life().hub.Publish(one);
  EXPECT_NE(views.Of(Stored(one)), first);
  EXPECT_EQ(views.made(), 2);
  life().hub.PublishAll();
  views.Of(Stored(one));
  EXPECT_EQ(views.made(), 3);
}

TEST_F(ViewCacheTest, AChangeOfTheStoreOrTimeThatPassesMakesAnother) {
  const std::string id = Submit(Spec("one"));
  ViewCache views(control(), &life().hub, clock());
  EXPECT_FALSE(views.Of(Stored(id))->has_stop());
  const JobPtr before = Stored(id);
  ASSERT_OK(Stop(id, v1::STOP_MODE_AT_STEP, 5));
  EXPECT_NE(Stored(id), before);
  EXPECT_EQ(views.Of(Stored(id))->stop().at_step(), 5);
  const int64_t made = views.made();
  clock().Advance(ViewCache::kOldest / 2);
  views.Of(Stored(id));
  EXPECT_EQ(views.made(), made);
  clock().Advance(ViewCache::kOldest);
  views.Of(Stored(id));
  EXPECT_EQ(views.made(), made + 1);
}

TEST_F(ViewCacheTest, ThatOfAJobThatHasEndedIsNotKept) {
  const std::string id = Submit(Spec("one"));
  ViewCache views(control(), &life().hub, clock());
  ASSERT_OK(Stop(id, v1::STOP_MODE_NOW));
  Look();
  ASSERT_EQ(Stored(id)->job().state(), v1::Job::STATE_STOPPED);
  EXPECT_EQ(views.Of(Stored(id))->state(), v1::Job::STATE_STOPPED);
  views.Of(Stored(id));
  EXPECT_EQ(views.made(), 2);
}

}  // namespace
}  // namespace nsa::server
