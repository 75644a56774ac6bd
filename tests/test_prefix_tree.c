/* The prefix tree: what is found, what is given up first, and that keys share nothing. How sessions
 * use it is tested at random by test_step and test_batcher_model.
 */
#include "test.h"

#include "engine/prefix_tree.h"

enum { PAGE = 4, PAGES = 6, LENGTH = 16 };

static qp_error error;

typedef struct world {
    page_pool pool;
    prefix_tree tree;
    page_list list;
} world;

static const int32_t text[LENGTH] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const int32_t fork_text[LENGTH] = {1, 2, 3, 4, 5, 6, 0, 0, 9, 10, 11, 12};

static int start(void **state)
{
    static world w;
    assert_ok(page_pool_init(&w.pool, PAGES, PAGE, &error));
    assert_ok(prefix_tree_open(&w.tree, &w.pool, &error));
    assert_ok(page_list_init(&w.list, PAGES, &error));
    *state = &w;
    return 0;
}

static int stop(void **state)
{
    world *w = *state;
    page_list_free(&w->list, &w->pool);
    assert_int_equal(page_pool_available(&w->pool), PAGES);
    prefix_tree_close(&w->tree);
    page_pool_free(&w->pool);
    return 0;
}

/* A sequence computes `count` tokens of the text, and ends. */
static void compute(world *w, uint64_t key, const int32_t *tokens, size_t count)
{
    page_copy copy;
    assert_ok(page_list_grow(&w->list, &w->pool, 0, (int64_t)count, &copy, &error));
    prefix_tree_keep(&w->tree, key, tokens, count, 0, &w->list);
    page_list_shrink(&w->list, &w->pool, 0);
}

static int64_t found(const world *w, uint64_t key, const int32_t *tokens, size_t count)
{
    prefix_walk walk = {0};
    prefix_tree_find(&w->tree, key, tokens, count, &walk);
    return walk.n_pages;
}

static void full_pages_are_found(void **state)
{
    world *w = *state;
    compute(w, 7, text, 11);
    assert_int_equal(w->tree.n_nodes, 2);
    assert_int_equal(w->pool.n_idle, 2);
    assert_int_equal(found(w, 7, text, LENGTH), 2);
    assert_int_equal(found(w, 7, text, 7), 1);
    assert_int_equal(found(w, 7, fork_text, LENGTH), 1);
    assert_int_equal(found(w, 8, text, LENGTH), 0);
    assert_int_equal(found(w, 7, text + 4, 8), 0);
}

/* Of two that computed the same, one page is kept, and both hold it. */
static void equal_pages_become_one(void **state)
{
    world *w = *state;
    page_list other;
    page_copy copy;
    assert_ok(page_list_init(&other, PAGES, &error));
    assert_ok(page_list_grow(&w->list, &w->pool, 0, 8, &copy, &error));
    assert_ok(page_list_grow(&other, &w->pool, 0, 10, &copy, &error));
    assert_int_equal(prefix_tree_keep(&w->tree, 0, text, 8, 0, &w->list), 2);
    assert_int_equal(prefix_tree_keep(&w->tree, 0, text, 10, 0, &other), 2);
    assert_int_equal(w->tree.n_nodes, 2);
    assert_int_equal(other.pages[0], w->list.pages[0]);
    assert_int_equal(other.pages[1], w->list.pages[1]);
    assert_int_equal(page_pool_available(&w->pool), PAGES - 3);
    page_list_free(&other, &w->pool);
}

static void the_longest_unused_leaf_is_given_up_first(void **state)
{
    world *w = *state;
    page_copy copy;
    compute(w, 0, text, 12);
    compute(w, 0, fork_text, 8); /* its first page is the other's */
    assert_int_equal(w->tree.n_nodes, 4);
    assert_ok(page_list_grow(&w->list, &w->pool, 0, 3 * PAGE, &copy, &error));
    assert_int_equal(found(w, 0, text, LENGTH), 2);
    assert_int_equal(found(w, 0, fork_text, LENGTH), 2);
    assert_ok(page_list_grow(&w->list, &w->pool, 3 * PAGE, 5 * PAGE, &copy, &error));
    assert_int_equal(found(w, 0, text, LENGTH), 1);
    assert_int_equal(found(w, 0, fork_text, LENGTH), 1);
    assert_int_equal(w->tree.n_taken, 3);
}

/* A walk goes on where it ended, and begins again when what it found is gone. */
static void walks_go_on(void **state)
{
    world *w = *state;
    page_copy copy;
    prefix_walk walk = {0};
    compute(w, 0, text, 4);
    prefix_tree_find(&w->tree, 0, text, LENGTH, &walk);
    assert_int_equal(walk.n_pages, 1);
    compute(w, 0, text, 12);
    prefix_tree_find(&w->tree, 0, text, LENGTH, &walk);
    assert_int_equal(walk.n_pages, 3);
    assert_int_equal(prefix_tree_count_idle(&w->tree, walk.last), 3);
    prefix_tree_take(&w->tree, 0, text, 4, &w->list);
    assert_int_equal(prefix_tree_count_idle(&w->tree, walk.last), 2);
    assert_ok(page_list_grow(&w->list, &w->pool, 4, 5 * PAGE, &copy, &error));
    prefix_tree_find(&w->tree, 0, text, LENGTH, &walk);
    assert_int_equal(walk.n_pages, 2);
}

/* Whoever writes to a kept page gets a copy; the last page that there is is taken from the tree
 * instead. */
static void kept_pages_are_not_written_to(void **state)
{
    world *w = *state;
    page_copy copy;
    compute(w, 0, text, 8);
    prefix_tree_take(&w->tree, 0, text, 7, &w->list);
    assert_int_equal(page_list_need(&w->list, &w->pool, 7, 8), 1);
    assert_ok(page_list_grow(&w->list, &w->pool, 7, 8, &copy, &error));
    assert_true(copy.needed);
    page_list_shrink(&w->list, &w->pool, 0);
    compute(w, 0, text, 8);
    compute(w, 1, text, 16);
    prefix_tree_take(&w->tree, 0, text, 7, &w->list);
    page_list other;
    assert_ok(page_list_init(&other, PAGES, &error));
    prefix_tree_take(&w->tree, 1, text, 16, &other);
    assert_int_equal(page_pool_available(&w->pool), 0);
    assert_ok(page_list_grow(&w->list, &w->pool, 7, 8, &copy, &error));
    assert_false(copy.needed);
    assert_int_equal(found(w, 0, text, 8), 1);
    assert_int_equal(page_list_grow(&other, &w->pool, 16, 17, &copy, &error), QP_NO_MEMORY);
    page_list_free(&other, &w->pool);
}

static void pages_are_restored(void **state)
{
    world *w = *state;
    page_copy copy;
    const int32_t root = prefix_tree_restore(&w->tree, 3, -1, text);
    const int32_t child = prefix_tree_restore(&w->tree, 3, root, text + 4);
    assert_true(root >= 0 && child >= 0);
    assert_int_equal(prefix_tree_restore(&w->tree, 3, root, text + 4), -1);
    assert_int_equal(found(w, 3, text, LENGTH), 2);
    assert_ok(page_list_grow(&w->list, &w->pool, 0, 5 * PAGE, &copy, &error));
    assert_int_equal(found(w, 3, text, LENGTH), 1);
    assert_int_equal(prefix_tree_restore(&w->tree, 3, root, text + 4), -1); /* no room */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(full_pages_are_found),
        TEST(equal_pages_become_one),
        TEST(the_longest_unused_leaf_is_given_up_first),
        TEST(walks_go_on),
        TEST(kept_pages_are_not_written_to),
        TEST(pages_are_restored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
