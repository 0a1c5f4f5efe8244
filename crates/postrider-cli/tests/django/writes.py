"""Writes by every way that Django has. Each names itself in `app.path`, which becomes a header of its events."""

import os
from datetime import datetime, timezone
from decimal import Decimal

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tracker.settings")
django.setup()

from django.contrib.auth.models import User  # noqa: E402 (models exist after setup)
from django.core.management import call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.db.models import F  # noqa: E402
from django.test import Client  # noqa: E402

from tracker.models import Comment, Issue  # noqa: E402

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


def save():
    issue = Issue(title="Mend the roof", estimate=Decimal("2.50"), labels=["urgent"], description="long")
    issue.save()
    issue.save()  # nothing but updated_at
    issue.title = "Mend the roof!"
    issue.due = NOON
    issue.save()
    issue.state = "doing"
    issue.save(update_fields=["state", "updated_at"])
    issue.deleted_at = NOON
    issue.save()
    issue.deleted_at = None
    issue.save()
    Issue.objects.create(title="A new house", is_epic=True)


def rolled_back():
    issue = Issue.objects.get(pk=1)
    try:
        with transaction.atomic():
            issue.title = "never"
            issue.save()
            raise LookupError
    except LookupError:
        pass
    with transaction.atomic():
        try:
            with transaction.atomic():  # a savepoint
                Comment.objects.create(issue=issue, body="never")
                raise LookupError
        except LookupError:
            pass
        Comment.objects.create(issue=issue, body="kept")


def bulk_create():
    Issue.objects.bulk_create([Issue(title=f"Window {n}", sort_order=n) for n in (1, 2, 3)])


def bulk_create_on_conflict():
    Issue.objects.bulk_create(
        [Issue(id=3, title="Window one"), Issue(id=900, title="Window nine")],
        update_conflicts=True,
        unique_fields=["id"],
        update_fields=["title"],
    )


def queryset_update():
    windows = Issue.objects.filter(id__in=[3, 4, 5])
    windows.update(sort_order=F("sort_order") + 1)  # ignored
    windows.filter(id__lt=5).update(state="done")
    windows.filter(id=5).update(estimate=Decimal("0.10"), state="doing")


def bulk_update():
    three, four = Issue.objects.get(pk=3), Issue.objects.get(pk=4)
    three.title, four.estimate = "Window 1", Decimal("7")
    Issue.objects.bulk_update([three, four], ["title", "estimate"])


def many_to_many():
    ada, alan = User.objects.get(username="ada"), User.objects.get(username="alan")
    issue, epic = Issue.objects.get(pk=1), Issue.objects.get(pk=2)
    issue.assignees.add(ada)
    issue.assignees.set([alan])
    epic.assignees.add(ada, alan)


def raw_sql():
    with connection.cursor() as cursor:
        cursor.execute("update tracker_issue set title = %s where id = %s", ["Raw", 5])
        cursor.execute("insert into tracker_comment (issue_id, body) values (2, 'raw'), (5, 'raw')")
        cursor.execute("delete from tracker_comment where issue_id = 5")


def delete():
    Issue.objects.filter(id=2).delete()  # Django deletes what hangs on it itself, and first


def admin():
    client = Client(enforce_csrf_checks=False)
    page = client.post("/admin/login/", {"username": "ada", "password": "secret", "next": "/admin/"})
    assert page.status_code == 302, page.content
    comment = Comment.objects.get(issue=1)
    form = {
        "title": "By hand",
        "state": "review",
        "estimate": "2.50",
        "due_0": "2026-01-31",
        "due_1": "12:00:00",
        "labels": '["urgent", "roof"]',
        "assignees": [User.objects.get(username="ada").pk],
        "comments-TOTAL_FORMS": "2",
        "comments-INITIAL_FORMS": "1",
        "comments-0-id": comment.pk,
        "comments-0-issue": "1",
        "comments-0-body": "edited",
        "comments-1-issue": "1",
        "comments-1-body": "added",
    }
    page = client.post("/admin/tracker/issue/1/change/", form)
    assert page.status_code == 302, page.content.decode()
    page = client.post("/admin/tracker/issue/4/delete/", {"post": "yes"})
    assert page.status_code == 302, page.content.decode()
    chosen = {"action": "delete_selected", "_selected_action": ["5", "900"], "post": "yes"}
    page = client.post("/admin/tracker/issue/", chosen)
    assert page.status_code == 302, page.content.decode()


def main():
    # Our migration changes nothing of the models: Django finds nothing to migrate.
    call_command("makemigrations", check_changes=True, dry_run=True, verbosity=0)
    User.objects.create_superuser("ada", password="secret")
    User.objects.create_user("alan")
    paths = [save, rolled_back, bulk_create, bulk_create_on_conflict, queryset_update, bulk_update]
    paths += [many_to_many, raw_sql, delete, admin]
    for path in paths:
        with connection.cursor() as cursor:
            cursor.execute("select set_config('app.path', %s, false)", [path.__name__])
        path()


if __name__ == "__main__":
    main()
